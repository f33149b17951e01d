"""Writes safetensors files and hashes the bytes while they are written.

The writer of the safetensors package holds Python's global lock until the file is complete. This
one releases it, so that a thread can write a snapshot while another computes.
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

SHARD = "50GB"  # the most in one file, as transformers has it
INDEX = "model.safetensors.index.json"
PIECE = 2**24  # bytes that are hashed, then written
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a file for `safetensors.torch.load_file`; return its hex SHA-256. Raises OSError."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # aligned
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in _pieces(tensors, names):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def write_sharded(
    directory: Path, tensors: Mapping[str, Tensor], most: str = SHARD
) -> dict[str, str]:
    """Write weights into the files of a transformers model; return the hex SHA-256 of each file.

    `most`: size of one file, with its unit.
    """
    from huggingface_hub import split_torch_state_dict_into_shards

    split = split_torch_state_dict_into_shards(dict(tensors), max_shard_size=most)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return {
        name: write_tensors(directory / name, {key: tensors[key] for key in keys})
        for name, keys in split.filename_to_tensors.items()
    }


def _pieces(tensors: Mapping[str, Tensor], names: list[str]) -> Iterator[bytes | memoryview]:
    yield from _header(tensors, names)
    for name in names:
        whole = tensors[name].detach().cpu().contiguous().reshape(-1)
        content = whole.view(torch.uint8).numpy().data
        for start in range(0, len(content), PIECE):
            yield content[start : start + PIECE]


def _header(tensors: Mapping[str, Tensor], names: list[str]) -> tuple[bytes, bytes]:
    """Return the length of the header and the header, padded so that tensors are aligned."""
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        place = {"shape": list(tensor.shape), "data_offsets": [begin, end]}
        described[name] = {"dtype": TYPES[tensor.dtype], **place}
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)), header
