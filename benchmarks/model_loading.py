"""Peak host memory of each rank of a DeepSpeed trainer that loads a model.

python benchmarks/model_loading.py --model models/smollm2 --ranks 2
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from agentrl.core.config.sections.training import DeepSpeed, Trainer
from agentrl.core.processes.rank_place import MEETING, find_rank_place
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.deepspeed_learner import DeepSpeedLearner
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.ranks import join_ranks

MIB = 1024  # KiB


def main() -> None:
    """All ranks, or, told a place, one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/tiny"))
    parser.add_argument("--zero", type=int, choices=range(4), default=3)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    if find_rank_place(os.environ) is not None:
        one_rank(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        peaks = [measured(process) for process in start(Path(folder), options.ranks)]
    found = {"model": str(options.model), "zero": options.zero, "ranks": options.ranks}
    result = {**found, "peak_mib": peaks, "all_mib": sum(peaks)}
    print(json.dumps(result))


def start(folder: Path, ranks: int) -> list[subprocess.Popen[str]]:
    """One process a rank; each prints a line with its own figure."""
    found = []
    for rank in range(ranks):
        environment = os.environ | {
            **{"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)},
            **{MEETING: (folder / "meeting").as_uri(), "GLOO_SOCKET_IFNAME": "lo"},
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, *sys.argv]
        found.append(subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE))
    return found


def measured(process: subprocess.Popen[str]) -> int:
    """MiB that a rank took at its peak."""
    said, _ = process.communicate()
    figure = re.search(r"^peak (\d+)$", said, re.MULTILINE)
    if figure is None:
        raise RuntimeError(f"a rank ended with {process.returncode}")
    return int(figure[1])


def one_rank(options: argparse.Namespace) -> None:
    """Load as a trainer does; what that took beyond the libraries."""
    own, section = find_rank_place(os.environ), DeepSpeed(zero=options.zero)
    if own is None:
        raise ValueError("no place")
    with join_ranks(own, 600.0, "cpu") as ranks:
        before = kib("VmRSS")
        chosen = resolve_settings(Trainer(deepspeed=section))
        DeepSpeedLearner(options.model, chosen, Hardware(), section, ranks)
        print("peak", (kib("VmHWM") - before) // MIB, flush=True)
        ranks.barrier()


def kib(name: str) -> int:
    """A line of /proc/self/status."""
    (line,) = re.findall(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    return int(line)


if __name__ == "__main__":
    main()
