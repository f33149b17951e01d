"""Would it pay to publish what changed? bfloat16 weights one update apart, whole and as a delta.

    whole  write ─▶ hash ─▶ read ─▶ hash
    delta  xor with the former bytes, zstd ─▶ write ─▶ hash ─▶ read ─▶ undo ─▶ hash of the whole

python benchmarks/weight_deltas.py --json
"""

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import zstandard
from shapes import SHAPES, make_model, small_batch

from agentrl.core.config.sections import Trainer
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner

REPEATS = 5


def saved_versions(size: str, rate: float) -> tuple[bytes, bytes]:
    """The weights' file after two updates and after three."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        make_model(size, path / "model")
        chosen = resolve_settings(Trainer(learning_rate=rate))
        learner = TorchLearner(path / "model", chosen, Hardware(dtype="bfloat16"))
        found = []
        for number in range(3):
            learner.update(small_batch())
            (path / str(number)).mkdir()
            learner.save(path / str(number))
            found.append((path / str(number) / "model.safetensors").read_bytes())
    return found[1], found[2]


def changed(old: bytes, new: bytes) -> float:
    """Share of the 16-bit words that differ."""
    return float(np.mean(np.frombuffer(old, np.uint16) != np.frombuffer(new, np.uint16)))


def pack(old: bytes, new: bytes) -> bytes:
    """High and low bytes apart: the former change rarely."""
    difference = np.frombuffer(old, np.uint8) ^ np.frombuffer(new, np.uint8)
    apart = difference.reshape(-1, 2).T.tobytes()
    return zstandard.ZstdCompressor(level=1).compress(apart)


def unpack(old: bytes, packed: bytes) -> bytes:
    apart = np.frombuffer(zstandard.ZstdDecompressor().decompress(packed), np.uint8)
    return (np.frombuffer(old, np.uint8) ^ apart.reshape(2, -1).T.ravel()).tobytes()


def stored(file: Path, content: bytes) -> bytes:
    """Written durably, hashed, read back."""
    with file.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    hashlib.sha256(content)
    return file.read_bytes()


def seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(size: str, rate: float, folder: Path) -> dict[str, object]:
    old, new = saved_versions(size, rate)
    packed = pack(old, new)
    if unpack(old, packed) != new:
        raise SystemExit("the delta does not give the weights back")
    file = folder / "file"

    def whole() -> None:
        hashlib.sha256(stored(file, new))

    def delta() -> None:
        hashlib.sha256(unpack(old, stored(file, pack(old, new))))

    return {
        "size": size,
        "learning_rate": rate,
        "mib": round(len(new) / 2**20, 1),
        "changed": round(changed(old, new), 4),
        "delta_of_whole": round(len(packed) / len(new), 4),
        "whole_s": round(seconds(whole), 4),
        "delta_s": round(seconds(delta), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SHAPES, default="25M")
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-6, 3e-6, 1e-5])
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(options.size, rate, Path(folder)) for rate in options.rates]
    print(json.dumps(rows) if options.json else "\n".join(map(str, rows)))


if __name__ == "__main__":
    main()
