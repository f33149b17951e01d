"""What a file of W&B holds, by its SDK's own records: it has no reader of its own.

The file is a log in blocks, as LevelDB has them: each piece is a checksum, its length and whether
it is all of a record (1), its beginning (2), middle (3) or end (4).
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from wandb.proto import wandb_internal_pb2 as messages

HEAD, BLOCK, PIECE = 7, 32_768, 7  # bytes: of a file, of a block, before each piece


def files(folder: Path, run: str) -> list[Path]:
    """The offline files of a run."""
    return sorted(folder.glob(f"wandb/offline-run-*/run-{run}.wandb"))


def figures(folder: Path, run: str) -> Iterator[tuple[int, str, float]]:
    """Version, name and value of all rows of all of them."""
    for path in files(folder, run):
        for written in _records(path.read_bytes()):
            record = messages.Record.FromString(written)  # type: ignore[attr-defined]  # made at import
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                row = {i.key or ".".join(i.nested_key): float(i.value_json) for i in items}
                version = int(row.pop("version"))
                yield from ((version, key, row[key]) for key in row if key[0] != "_")


def _records(content: bytes) -> Iterator[bytes]:
    at, kept = HEAD, b""
    while at + PIECE <= len(content):
        left = BLOCK - at % BLOCK
        if left < PIECE:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        kept += content[at + PIECE : at + PIECE + length]
        at += PIECE + length
        if kind in (1, 4):
            yield kept
            kept = b""
