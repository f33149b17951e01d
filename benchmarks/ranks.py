"""Tokens a second of an update: torch in one process, DeepSpeed on one rank and on two.

    python benchmarks/ranks.py --zero 2
    python benchmarks/ranks.py --loading models/smollm2 --zero 3 [--ranks 2]

With `--device cuda` each rank has a card of its own; with one card there is no arm of two ranks.

Each arm keeps its processes; the arms update in turn, so that a busy machine slows all of them.

`--loading`: instead, the MiB of host memory that each rank takes at its peak to load that model,
beyond the libraries.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from helpers.random_models import make_model, ragged_batch

from agentrl.core.config.sections.training import DeepSpeed, Trainer
from agentrl.core.processes.rank_place import MEETING, find_rank_place
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.deepspeed_learner import DeepSpeedLearner
from agentrl.trainer.engines.learner import Hardware, Learner
from agentrl.trainer.engines.rank0 import Rank0Coordinator, follow_rank0
from agentrl.trainer.engines.ranks import join_ranks
from agentrl.trainer.engines.torch_learner import TorchLearner

SIZES = ("1M", "5M", "25M")  # of benchmarks/helpers/random_models.py


def main() -> None:
    """The arms, or, told a place, one rank of one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SIZES, default="1M")
    parser.add_argument("--zero", type=int, choices=range(4), default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--micro-batch-tokens", type=int, default=4096)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--loading", type=Path, help="a model; its loading is measured instead")
    parser.add_argument("--ranks", type=int, default=2, help="with --loading")
    parser.add_argument("--arm", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        arm(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.loading:
            result = load_on_ranks(Path(folder), options)
        else:
            make_model(options.model, Path(folder) / "model")
            result = compare(Path(folder), options)
    print(json.dumps(result))


def load_on_ranks(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The peak of each rank, and their sum; MiB."""
    processes = started(folder, "loading", options.ranks)
    peaks = [int(read_figure(process, "peak")) for process in processes]
    for process in processes:
        process.wait(60)
    found = {"model": str(options.loading), "zero": options.zero, "ranks": options.ranks}
    return {**found, "peak_mib": peaks, "all_mib": sum(peaks)}


def compare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Medians of the repeats; the first update of each warms up and is not counted."""
    arms = {
        name: started(folder, name, ranks)
        for name, ranks in (("torch", 0), ("deepspeed_1", 1), ("deepspeed_2", 2))
        if options.device == "cpu" or ranks <= torch.cuda.device_count()
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(options.repeats + 1):
        for name, processes in arms.items():
            seconds[name].append(asked(processes[0]))
    for processes in arms.values():
        asked(processes[0], "end")
        for process in processes:
            process.wait(60)
    tokens = int(ragged_batch(resolve_settings(Trainer())).tokens.size)
    speeds = {name: tokens / statistics.median(each[1:]) for name, each in seconds.items()}
    both = zip(seconds["deepspeed_1"][1:], seconds.get("deepspeed_2", [])[1:], strict=False)
    ratios = [one / two for one, two in both]
    return {
        "model": options.model,
        "zero": options.zero,
        "tokens": tokens,
        **{f"{name}_tokens_per_s": round(speed) for name, speed in speeds.items()},
        "two_ranks_vs_one": round(statistics.median(ratios), 2) if ratios else None,
    }


def started(folder: Path, name: str, ranks: int) -> list[subprocess.Popen[str]]:
    """The processes of an arm; the first answers a line with the seconds of an update."""
    made = []
    for rank in range(max(1, ranks)):
        environment = os.environ | {
            **{"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)},
            **{MEETING: (folder / name).as_uri(), "GLOO_SOCKET_IFNAME": "lo"},
            **{"OMP_NUM_THREADS": "1", "AGENTRL_BENCHMARK": str(folder / "model")},
        }
        command = [sys.executable, *sys.argv, "--arm", name]
        pipe = None if rank and name != "loading" else subprocess.PIPE
        made.append(subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe))
    return made


def asked(process: subprocess.Popen[str], what: str = "update") -> float:
    """Seconds; of `end` none."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("not the first of its arm")
    process.stdin.write(f"{what}\n")
    process.stdin.flush()
    return 0.0 if what == "end" else read_figure(process, "seconds")


def read_figure(process: subprocess.Popen[str], name: str) -> float:
    """The next figure of that name among what a process prints."""
    for line in process.stdout or ():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise RuntimeError("an arm has ended")


def arm(options: argparse.Namespace) -> None:
    """One process of an arm."""
    path = options.loading or Path(os.environ["AGENTRL_BENCHMARK"])
    section = DeepSpeed(zero=options.zero)
    chosen = resolve_settings(
        Trainer(micro_batch_tokens=options.micro_batch_tokens, deepspeed=section)
    )
    if options.arm == "torch":
        answer(TorchLearner(path, chosen, Hardware(options.device)))
        return
    own = find_rank_place(os.environ)
    if own is None:
        raise ValueError("no place")
    device = "cpu" if options.device == "cpu" else f"cuda:{own.rank}"
    with join_ranks(own, section.timeout_s, device) as ranks:
        before = kib("VmRSS")
        part = DeepSpeedLearner(path, chosen, Hardware(device), section, ranks)
        if options.loading:
            print("peak", (kib("VmHWM") - before) // 1024, flush=True)
            ranks.barrier()
            return
        if own.rank:
            follow_rank0(part, ranks)
            return
        with closing(Rank0Coordinator(part, ranks)) as lead:
            answer(lead)


def kib(name: str) -> int:
    """A line of /proc/self/status."""
    (line,) = re.findall(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    return int(line)


def answer(learner: Learner) -> None:
    """An update for every line, until one says `end`."""
    batch = ragged_batch(resolve_settings(Trainer()))
    for line in sys.stdin:
        if line.strip() == "end":
            return
        metrics = learner.update(batch)
        if metrics.skipped:
            raise RuntimeError(metrics.skipped)
        print("seconds", metrics.values["seconds"], flush=True)


if __name__ == "__main__":
    main()
