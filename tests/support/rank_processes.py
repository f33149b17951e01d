"""Ranks that do one job after another: `run` starts them, and this file is their program too.

A job is a learner (model, trainer section, dtype) and what is done with it: updates, a snapshot to
begin with, a checkpoint to save. Rank 0 writes what came out; the group is made once.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from agentrl.core.config.sections.training import Trainer
from agentrl.core.processes.rank_place import MEETING, find_rank_place
from agentrl.trainer.batch import Batch

PATIENCE_S = 600.0
NAMES = ("tasks", "unnormalised")  # of a Batch: words, sorted


class Job(msgspec.Struct, frozen=True):
    """`batches`: files that `write_batch` wrote; `snapshot`: to load first; `save`: a folder
    for a checkpoint afterwards; `looks`: whether the state is read before each step; `memory`: the
    bytes of each rank, of which a pass takes one for each token; empty: not counted.
    """

    name: str
    model: str
    trainer: Trainer
    batches: list[str] = []
    snapshot: str = ""
    save: str = ""
    dtype: str = "float32"
    looks: bool = False
    memory: list[int] = []


@dataclass
class JobResult:
    """Of one job: `metrics` and `skipped` of each update, `state` at the end, `probe` if saved."""

    metrics: list[dict[str, float]]
    skipped: list[str]
    probe: list[float]
    tensors: dict[str, Any] = field(default_factory=dict)


def write_batch(path: Path, batch: Batch) -> str:
    """Write a batch to a file that a job can name."""
    import numpy as np

    arrays: dict[str, Any] = {each.name: getattr(batch, each.name) for each in fields(Batch)}
    arrays |= {name: np.array(sorted(arrays[name]), np.str_) for name in NAMES}
    np.savez(path.with_suffix(".npz"), **arrays)
    return str(path.with_suffix(".npz"))


def read_batch(path: Path) -> Batch:
    """Read what `write_batch` wrote."""
    import numpy as np

    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    tasks, unnormalised = (arrays.pop(name).tolist() for name in NAMES)
    return Batch(**arrays, tasks=tuple(tasks), unnormalised=frozenset(unnormalised))


def run_jobs(
    jobs: Sequence[Job], ranks: int, folder: Path, timeout_s: float = 60.0
) -> dict[str, JobResult]:
    """Run every job on so many ranks; return the results by name."""
    from safetensors.torch import load_file

    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    for process, log in start(jobs, ranks, folder, timeout_s):
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        assert code == 0, log.read_text()[-4000:]
    found = {}
    for job in jobs:
        told: Mapping[str, Any] = json.loads((out / f"{job.name}.json").read_text())
        found[job.name] = JobResult(**told, tensors=load_file(out / f"{job.name}.safetensors"))
    return found


def start(
    jobs: Sequence[Job], ranks: int, folder: Path, timeout_s: float = 60.0
) -> list[tuple[subprocess.Popen[bytes], Path]]:
    """Start the processes; return them with their logs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs.json").write_bytes(msgspec.json.encode(list(jobs)))
    meeting = Path(tempfile.mkdtemp(dir=folder)) / "meeting"
    started = []
    for rank in range(ranks):
        log = folder / f"rank-{rank}.log"
        environment = os.environ | {
            **{MEETING: meeting.as_uri(), "RANK": str(rank), "WORLD_SIZE": str(ranks)},
            **{"LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        }
        with log.open("wb") as output:
            command = [sys.executable, __file__, str(folder), str(timeout_s)]
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        started.append((process, log))
    return started


def main(folder: Path, timeout_s: float) -> None:
    """Run all jobs on one rank."""
    from agentrl.trainer.engines.ranks import join_ranks

    own = find_rank_place(os.environ)
    assert own is not None
    jobs = msgspec.json.decode((folder / "jobs.json").read_bytes(), type=list[Job])
    with join_ranks(own, timeout_s, "cpu") as ranks:
        for job in jobs:
            _work(job, ranks, folder / "out")
            gc.collect()


def _work(job: Job, ranks: Any, out: Path) -> None:
    from fake_device_memory import FakeDeviceMemory

    from agentrl.trainer.algorithm.presets import resolve_settings
    from agentrl.trainer.engines.deepspeed_learner import DeepSpeedLearner
    from agentrl.trainer.engines.learner import Hardware
    from agentrl.trainer.engines.pass_budget import PassBudget
    from agentrl.trainer.engines.rank0 import Rank0Coordinator, follow_rank0

    weights = job.dtype if job.trainer.deepspeed.weights == "model" else "float32"
    hardware = Hardware(dtype=job.dtype, weights_dtype=weights)
    part = DeepSpeedLearner(
        Path(job.model), resolve_settings(job.trainer), hardware, job.trainer.deepspeed, ranks
    )
    if job.memory:
        memory = FakeDeviceMemory(job.memory[ranks.rank])
        part._budget = PassBudget(job.trainer.micro_batch_tokens, 0.9, memory)
        part._objective = _CountedMemory(part._objective, memory)  # type: ignore[assignment]
    if ranks.rank:
        follow_rank0(part, ranks)
    else:
        with closing(Rank0Coordinator(part, ranks, job.trainer.optimizer_steps)) as lead:
            _lead(job, lead, out)


class _CountedMemory:
    """An Objective that takes memory while it computes."""

    def __init__(self, objective: Any, memory: Any) -> None:
        self._objective = objective
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def loss(self, model: Any, micro: Any) -> Any:
        with self._memory.holding(micro.tokens.size):
            return self._objective.loss(model, micro)


def _lead(job: Job, lead: Any, out: Path) -> None:
    from safetensors.torch import save_file

    from agentrl.trainer.engines.learner import OPEN, Gates
    from agentrl.trainer.snapshots import snapshots

    if job.snapshot:
        lead.load_state(snapshots.load(Path(job.snapshot))[0])
    gates = Gates(before_step=lead.state) if job.looks else OPEN
    found = [lead.update(read_batch(Path(path)), gates) for path in job.batches]
    state = lead.state()
    probe: list[float] = []
    if job.save:
        Path(job.save).mkdir()
        lead.copy_weights()(Path(job.save))
        probe = lead.probe().logprobs
        folder = Path(job.save).with_name(f"{Path(job.save).name}.snapshot")
        snapshots.save(folder, state, checkpoint_id="c", version=1)
    save_file(
        {name: value.contiguous() for name, value in state.tensors.items()},
        out / f"{job.name}.safetensors",
    )
    told = {
        "metrics": [dict(each.values) for each in found],
        "skipped": [each.skipped for each in found],
        "probe": probe,
    }
    (out / f"{job.name}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
