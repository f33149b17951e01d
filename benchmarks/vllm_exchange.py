"""What an exchange of whole weights in vLLM consists of, and what a transfer without a disk saves.

    row ─▶ hash (the former version serves) ─▶ load: pause, read, check, resume ─▶ probe ─▶ serving

`hash`, `load` and `probe` are what a policy server does for a checkpoint on its own disk. `disk`
and `socket` then bring the same tensors, each with its digest, into this process: from the file,
and from a peer that sends the file's bytes as fast as a Unix socket takes them. Their difference is
what `load` would gain if the trainer sent the weights. Seconds, medians.

    python benchmarks/vllm_exchange.py --model models/smollm2 [--dtype float32]
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from vllm_pool import engine_at, load

from agentrl.checkpoints import manifest
from agentrl.core import logging
from agentrl.core.config.sections.policies import Model, Vllm
from agentrl.serving.vllm.vllm_worker import digest

PROBE = list(range(100, 196))  # as many tokens as a checkpoint's probe
FILE = "model.safetensors"


def make_checkpoints(model: Path, home: Path) -> list[Path]:
    """Write two versions of a model in one file each, the second with other weights."""
    tensors = load_file(model / FILE)
    paths = []
    for version in (0, 1):
        path = home / f"c{version}"
        shutil.copytree(model, path, ignore=shutil.ignore_patterns("*.safetensors"))
        changed = {name: value + value * 1e-2 * version for name, value in tensors.items()}
        save_file(changed, path / FILE, metadata={"format": "pt"})
        digests = manifest.digests(path)
        manifest.write(path, manifest.Manifest(path.name, version, None, digests))
        paths.append(path)
    return paths


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def from_disk(path: Path) -> dict[str, str]:
    """Read every tensor as vLLM's worker does; return the digests."""
    found = {}
    with safe_open(path / FILE, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - it is no dictionary
            flat = opened.get_tensor(name).contiguous().reshape(-1)
            found[name] = digest(flat.view(torch.uint8).numpy())
    return found


def from_socket(path: Path) -> dict[str, str]:
    """Receive every tensor from a thread that sends the file; return the digests."""
    ours, theirs = socket.socketpair()
    with (path / FILE).open("rb") as file, ours, theirs:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
        header.pop("__metadata__", None)
        size = os.fstat(file.fileno()).st_size
        sender = threading.Thread(
            target=theirs.sendfile, args=(file, 8 + length, size - 8 - length)
        )
        sender.start()
        found = {}
        for name, entry in sorted(header.items(), key=lambda one: one[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            content = torch.empty(end - begin, dtype=torch.uint8).numpy()
            view, count = content.data, 0
            while count < len(view):
                count += ours.recv_into(view[count:])
            found[name] = digest(content)
        sender.join()
    return found


def measure(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Exchange two versions in turn; the first exchange warms up."""
    paths = make_checkpoints(options.model, home)
    if any(from_disk(path) != from_socket(path) for path in paths):
        raise SystemExit("the socket brought other bytes")
    model = Model(dtype=options.dtype, device="cpu")
    engine = engine_at(home, Vllm(python=str(options.python)), rank=0, model=model)
    spent: dict[str, list[float]] = {}
    try:
        start = seconds(lambda: load(engine, "c0", paths[0]))
        engine.score("c0", PROBE)
        for number in range(1, options.repeats + 2):
            path = paths[number % 2]
            name = path.name
            parts = {
                "hash": seconds(partial(manifest.verify, path)),
                "load": seconds(partial(engine.load, name, path)),
                "probe": seconds(partial(engine.score, name, PROBE)),
                "disk": seconds(partial(from_disk, path)),
                "socket": seconds(partial(from_socket, path)),
            }
            for part, value in parts.items():
                spent.setdefault(part, []).append(value)
    finally:
        engine.close()
    mib = (paths[0] / FILE).stat().st_size / 2**20
    found = {part: round(statistics.median(values[1:]), 3) for part, values in spent.items()}
    return {
        "dtype": options.dtype,
        "mib": round(mib, 1),
        "start": round(start, 1),
        **found,
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, default=Path(".venv-vllm/bin/python"))
    parser.add_argument("--model", type=Path, required=True, help="directory with one weight file")
    parser.add_argument("--dtype", default="float32", help="of the computation")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--folder", default=None, help="where to write; the system's default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.configure("exchange", level="WARNING")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        row = measure(options, Path(folder))
    print(json.dumps(row))


if __name__ == "__main__":
    main()
