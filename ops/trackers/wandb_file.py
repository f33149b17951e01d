"""Reads a W&B file, for which the SDK has no reader.

The file is a LevelDB log: blocks of pieces, each with a checksum, a length, and whether it is a
whole record (1), its beginning (2), middle (3) or end (4).
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from wandb.proto import wandb_internal_pb2 as messages

HEAD, BLOCK, PIECE = 7, 32_768, 7  # bytes: of a file, of a block, before each piece


def records(path: Path) -> Iterator[Any]:
    """Yield the records in order, up to a cut. Raises DecodeError for overwritten ones."""
    content = path.read_bytes()
    at, kept = HEAD, b""
    while at + PIECE <= len(content):
        left = BLOCK - at % BLOCK
        if left < PIECE:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        at += PIECE + length
        if at > len(content):
            return
        kept += content[at - length : at]
        if kind in (1, 4):
            yield messages.Record.FromString(kept)  # type: ignore[attr-defined]  # made at import
            kept = b""


def whole(path: Path) -> bool:
    """Return whether W&B completed the file, by its last record."""
    last = ""
    try:
        for record in records(path):
            last = record.WhichOneof("record_type")
    except (OSError, DecodeError):
        return False
    return last == "exit"
