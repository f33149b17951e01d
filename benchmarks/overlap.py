"""Generation beside training: one trace of episodes through the whole system, twice.

    python benchmarks/overlap.py [--updates 12] [--token-s 0.003] [--faster 1.0]

sync    max_staleness 0: generation waits for the update, the update for its whole batch
async   the default: max_staleness 4

The processes are those that `agentrl up` starts (embedded store and broker, HTTP, Celery), except
that the engine and the learner sleep for as long as their work would take
(helpers/trace_playback.py). So this measures how the system overlaps work, not arithmetic. Both
arms play the same trace of recorded episodes. A sampled token takes `--token-s` whatever shares its
pass, so that full batches favour neither arm. The time per trained token is chosen so that training
lasts as long as generation; `--faster` divides `--token-s`.

async_vs_sync  seconds of the updates of sync over those of async
of_ideal       max(generation, training) of the trace over the seconds of async
idle           share of an arm's seconds in which its trainer waited for groups
publishing     share in which it waited for the commit of the former update
stale          groups played in vain, because their policy was too old when they were ready
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from helpers.trace_playback import MODEL, Engine, Learner, Pace, Source, trace
from sqlalchemy import func, select

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Dispatch, Sampling
from agentrl.core.config.sections.episodes import Worker as WorkerConfig
from agentrl.core.config.sections.policies import Model, PolicyServer
from agentrl.core.config.sections.run import Run as RunConfig
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer
from agentrl.core.types import RUN_OVER, GroupState
from agentrl.db.models.episodes import Group
from agentrl.db.models.processes import Worker
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Update
from agentrl.db.queries import progress
from agentrl.db.registry.checkpoints import live_policies
from agentrl.db.store import Store, open_store
from agentrl.envs import registry
from agentrl.ops.processes.entry import run_role
from agentrl.ops.runs.begin import begin
from agentrl.serving import policy_process
from agentrl.trainer.engines import torch_learner

GROUPS, SIZE, PLACES = 4, 8, 32  # half the default's groups and places: the trace is 12 updates
PLAYED = f"{Source.__module__}:Source"
WARM = 3  # updates before the clock starts
LOAD_S = 0.05  # of a checkpoint, as the staleness experiment measured
STALENESS = {"sync": 0, "async": Dispatch().max_staleness}
PROCESSES = ("policy", "recorder", "trainer", "worker", "dispatcher")
STALLED_S = 120.0


def main() -> None:
    """The arms one after the other, or, told a role, one process of one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--token-s", type=float, default=0.003)
    parser.add_argument("--pass-s", type=float, default=0.0, help="of a pass besides its rows")
    parser.add_argument("--faster", type=float, default=1.0)
    parser.add_argument("--arms", nargs="+", choices=STALENESS, default=list(STALENESS))
    parser.add_argument("--role", default="", help=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role:
        process(chosen.role, chosen.config, paced(chosen))
        return
    print(json.dumps(measured(chosen)))


def paced(chosen: argparse.Namespace) -> Pace:
    """Training weighs what generation does at `--faster 1`."""
    lines = trace()
    plain = Pace(chosen.token_s, 0.0, 0.0, LOAD_S).generation(lines)
    trained = plain / sum(line.tokens for line in lines)
    return Pace(chosen.token_s / chosen.faster, chosen.pass_s, trained, LOAD_S)


def measured(chosen: argparse.Namespace) -> dict[str, float]:
    """Seconds of both arms and of the ideal, and what they say."""
    pace, lines = paced(chosen), trace()
    played = [lines[n % len(lines)] for n in range(chosen.updates * GROUPS * SIZE)]
    found = {
        "generation_s": round(pace.generation(played), 2),
        "training_s": round(pace.training(played), 2),
    }
    for arm in chosen.arms:
        with tempfile.TemporaryDirectory(prefix="overlap-") as home:
            found |= {
                f"{arm}_{name}": value for name, value in run(arm, Path(home), chosen).items()
            }
    ideal = max(found["generation_s"], found["training_s"])
    if "async" in chosen.arms:
        found["of_ideal"] = round(ideal / found["async_s"], 3)
    if len(chosen.arms) == len(STALENESS):
        found["async_vs_sync"] = round(found["sync_s"] / found["async_s"], 3)
    return found


def run(arm: str, home: Path, chosen: argparse.Namespace) -> Mapping[str, float]:
    """The figures of one arm."""
    registry.TASKS["played"] = PLAYED
    config = configured(home, STALENESS[arm], WARM + chosen.updates)
    run_id = begin(config)
    path = home / "overlap.toml"
    path.write_text(config_loading.to_toml(config))
    command = [sys.executable, *sys.argv, "--config", str(path), "--role"]
    children: list[subprocess.Popen[bytes]] = []
    try:
        with closing(open_store(config.store_url())) as store:
            for role in PROCESSES:
                if role == "dispatcher":
                    ready(store, run_id)
                with (home / f"{role}.log").open("wb") as log:
                    children.append(subprocess.Popen([*command, role], stdout=log, stderr=log))
            finished(store, run_id, home)
            return figures(store, WARM)
    finally:
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            child.wait(90)


def configured(home: Path, staleness: int, updates: int) -> Config:
    """Batches are of one size in both arms."""
    return Config(
        run=RunConfig(name="overlap", home=str(home), stop_updates=updates),
        tasks={"played": Task()},
        model=Model(path=str(MODEL)),
        sampling=Sampling(strategy="current", max_step_tokens=256),
        dispatch=Dispatch(groups_per_update=GROUPS, group_size=SIZE, max_staleness=staleness),
        worker=WorkerConfig(concurrency=PLACES),
        policy=[PolicyServer(name="policy", engine="scripted")],
        trainer=Trainer(max_groups=GROUPS),
    )


def process(role: str, path: Path, pace: Pace) -> None:
    """One process of a run, with a clock where its arithmetic would be."""
    registry.TASKS["played"] = PLAYED
    Learner.pace = pace
    replaced: Any = policy_process
    replaced.make_engine = lambda _config, _server, _stop: Engine(pace, SIZE)
    torch_learner.TorchLearner = Learner  # type: ignore[misc]
    run_role(role, path, supervised=True)


def ready(store: Store, run_id: str) -> None:
    """Wait for policy server, worker and trainer, so that none has a start on another."""
    deadline = time.monotonic() + STALLED_S
    while time.monotonic() < deadline:
        with store.read() as session:
            workers = select(Worker.worker_id).where(Worker.run_id == run_id)
            up = live_policies(session, run_id) and session.scalars(workers).first()
            if up and session.get_one(Run, run_id).trainer_epoch:
                return
        time.sleep(0.2)
    raise SystemExit(f"no policy server, worker or trainer for {STALLED_S} s")


def finished(store: Store, run_id: str, home: Path) -> None:
    """Wait for the end of the run. Raises SystemExit where no update comes."""
    version, moved = -1, time.monotonic()
    while True:
        with store.read() as session:
            run = progress.totals(session, run_id)
        if run.state in RUN_OVER:
            return
        if run.version != version:
            version, moved = run.version, time.monotonic()
            print(f"{home.name}: version {version}", file=sys.stderr, flush=True)
        if time.monotonic() - moved > STALLED_S:
            said = "".join(each.read_text()[-2000:] for each in sorted(home.glob("*.log")))
            raise SystemExit(f"no update for {STALLED_S} s\n{said}")
        time.sleep(0.5)


def figures(store: Store, warm: int) -> dict[str, float]:
    """Of the updates after the warm ones, all on the database's clock."""
    with store.read() as session:
        rows = session.execute(
            select(Update.started_at, Update.committed_at, Update.metrics).order_by(Update.version)
        ).all()
        stale = session.scalar(select(func.count()).where(Group.state == GroupState.STALE))
    seconds = rows[-1].committed_at - rows[warm - 1].committed_at
    training = sum(row.metrics["seconds"] for row in rows[warm:])
    publishing = sum(row.metrics["commit_wait_s"] for row in rows[warm:])
    stepped = [
        row.started_at + row.metrics["seconds"] + row.metrics["commit_wait_s"] for row in rows
    ]
    idle = sum(
        max(0.0, row.started_at - at)
        for row, at in zip(rows[warm:], stepped[warm - 1 : -1], strict=True)
    )
    return {
        "s": round(seconds, 2),
        "idle": round(idle / seconds, 3),
        "publishing": round(publishing / seconds, 3),
        "trained_s": round(training, 2),
        "stale": stale or 0,
    }


if __name__ == "__main__":
    main()
