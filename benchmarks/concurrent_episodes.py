"""Thousands of episodes claimed and stepping at once over a few worker processes.

    python benchmarks/concurrent_episodes.py --store POSTGRES --broker AMQP
        [--episodes 1000 4000 10000] [--workers 4] [--turn 10 30 75]
        [--journal off]

The path of benchmarks/pipeline.py without a trainer. An episode has five turns; the policy server
takes half of `--turn` seconds (one for each N) for its answer, with an open connection, and the
environment the other half. All are admitted at once; a run ends when every body is stored. The last
must be claimed before the first ends, and N ÷ turn steps a second be affordable: beyond that a
machine is busy with threads alone. `--journal`: the value of `worker.journal`.

Figures: `at_once`, most episodes running at one look; `steps_s` while at least 99 % of them were;
`ms_step`: processor time of the workers for a step, claim and finish included; `pss_mib`: the
workers' memory, summed, at its most; `beat_late_s`: how long after it was due the latest beat of a
lease came, to the look's 0.25 s; `lost`: leases that ran out. Of every episode: `retried` attempts,
`refused` transitions, `redrawn` steps, and `accounting`, rows of the view.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import psutil
from helpers.instant_run import TURNS, SlowEngine, begin
from helpers.run_processes import Place, playing, told
from pipeline import MODEL, ROLES, SIZE, STALLED_S, Journal, instant_config
from sqlalchemy import Executable, func, select, text
from sqlalchemy.orm import Session

from agentrl import broker
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Worker as WorkerConfig
from agentrl.core.types import EpisodeState
from agentrl.db.admin import migrate
from agentrl.db.models.episodes import Episode, Step, StoredTrajectory
from agentrl.db.models.processes import PolicyServer, Worker
from agentrl.db.models.runs import Refusal
from agentrl.db.registry import checkpoints, policy_servers
from agentrl.db.store import Store, now, open_store
from agentrl.serving.served_checkpoints import ServedCheckpoints
from agentrl.serving.server import PolicyApp, Server

LOOK_S, PSS_S = 0.25, 5.0
ADMITTED = 5  # times groups_per_update, by the default of max_staleness
LONG_S = 3600.0


@dataclass(frozen=True)
class Timed(Place):
    """`steps`: sampled so far, by all workers. `pause_s`: of a policy, and of an environment."""

    steps: Any = None


def policy(place: Timed, store: Store, _link: broker.api.Broker) -> None:
    """A policy server of the run's only checkpoint."""
    engine, served = SlowEngine(MODEL, place.pause_s, place.steps), ServedCheckpoints()
    engine.load(place.run_id, Path())
    served.serve("current", place.run_id, 0)
    http = Server(PolicyApp(engine, served, ""), "127.0.0.1", 0, guarded=False)
    server = PolicyServer(
        server_id=place.run_id, run_id=place.run_id, name="slow", engine="scripted", url=http.url
    )

    def register(session: Session) -> None:
        policy_servers.register_server(session, server, lease_s=LONG_S)
        session.flush()
        (checkpoint,) = checkpoints.live_checkpoints(session, place.run_id)
        policy_servers.begin_serving(session, place.run_id, "current", checkpoint)

    store.transact(register)
    told(place).wait()
    http.close()


def configured(given: argparse.Namespace, episodes: int, home: str) -> Config:
    """As many groups open as there are episodes, a place for each."""
    worker = WorkerConfig(
        journal=given.journal,
        concurrency=-(-episodes // given.workers),
        attempt_deadline_s=LONG_S,
        policy_wait_s=LONG_S,
    )
    return instant_config(given, home, episodes // SIZE // ADMITTED, worker, [])


@dataclass
class Seen:
    """What the looks at one run found. Times are of the monotonic clock."""

    began: float = 0.0
    most: int = 0
    full_at: float = 0.0  # the look before, where that found them all
    steps_then: int = 0
    full_s: float = 0.0
    full_steps: int = 0
    ended: float = 0.0
    late_s: float = 0.0
    lost: set[str] = field(default_factory=set)
    pss_mib: float = 0.0
    pss_at: float = 0.0


def running(session: Session, run_id: str) -> tuple[int, int, Mapping[str, float]]:
    """Episodes that run; whose bodies are stored; seconds each worker's lease has left."""
    run = select(func.count()).where(
        Episode.run_id == run_id, Episode.state == EpisodeState.RUNNING
    )
    stored = select(func.count()).where(StoredTrajectory.run_id == run_id)
    left = select(Worker.worker_id, Worker.lease_until - now()).where(
        Worker.run_id == run_id, Worker.ended_at.is_(None)
    )
    leases = {worker_id: float(left_s) for worker_id, left_s in session.execute(left)}
    return session.scalar(run) or 0, session.scalar(stored) or 0, leases


def look(seen: Seen, place: Timed, store: Store, pids: list[int]) -> bool:
    """One look; whether every body is stored."""
    episodes = place.config.dispatch.groups_per_update * ADMITTED * SIZE
    run, stored, leases = store.ask(lambda session: running(session, place.run_id))
    clock = time.monotonic()
    if not seen.began and run:
        seen.began = clock
    seen.most = max(seen.most, run)
    steps, full = place.steps.value, run >= 0.99 * episodes
    if full and seen.full_at:
        seen.full_s += clock - seen.full_at
        seen.full_steps += steps - seen.steps_then
    seen.full_at, seen.steps_then = (clock if full else 0.0), steps
    if seen.began:
        worker = place.config.worker
        late = [worker.lease_s - worker.beat_s - left for left in leases.values()]
        seen.late_s = max([seen.late_s, *late])
        seen.lost |= {worker_id for worker_id, left in leases.items() if left < 0}
    if clock - seen.pss_at > PSS_S:
        seen.pss_at, seen.pss_mib = clock, max(seen.pss_mib, sum(map(pss_mib, pids)))
    seen.ended = clock
    return stored >= episodes


def pss_mib(pid: int) -> float:
    """Proportional set size of a process."""
    return float(psutil.Process(pid).memory_full_info().pss) / 2**20


def watch(place: Timed, store: Store, pids: list[int]) -> Seen:
    """Look until every body is stored."""
    seen, moved, last, patience_s = Seen(), time.monotonic(), -1, STALLED_S + place.pause_s
    while not look(seen, place, store, pids):
        if (steps := place.steps.value) != last:
            moved, last = time.monotonic(), steps
        if time.monotonic() - moved > patience_s:
            raise SystemExit(f"no step for {patience_s} s")
        time.sleep(LOOK_S)
    return seen


def told_of(session: Session, run_id: str) -> dict[str, float]:
    """What the rows say of the whole run."""
    counted: dict[str, Executable] = {
        "retried": select(func.count()).where(Episode.run_id == run_id, Episode.fence > 1),
        "refused": select(func.count()).where(Refusal.run_id == run_id),
        "redrawn": select(func.sum(Step.redrawn)).where(Step.run_id == run_id),
        "accounting": text("SELECT count(*) FROM accounting WHERE run_id = :id").params(id=run_id),
    }
    return {name: session.scalar(query) or 0 for name, query in counted.items()}


def run(given: argparse.Namespace, episodes: int, home: Path) -> Mapping[str, Any]:
    """Figures of one run."""
    context = multiprocessing.get_context("spawn")
    config = configured(given, episodes, str(home))
    with (
        closing(open_store(given.store)) as store,
        closing(broker.connect(given.broker)) as link,
    ):
        run_id = begin(store, home)
        link.declare_run(run_id)
        place = Timed(
            config,
            run_id,
            given.turn / 2,
            context.Event(),
            context.Queue(),
            steps=context.Value("q", 0),
        )
        loops: dict[str, Any] = {**ROLES, "policy": policy}
        names = ["policy", "recorder", *["worker"] * given.workers, "dispatcher"]
        with playing(place, link, loops, names) as played:
            workers = [
                pid for pid, name in zip(played.pids, names, strict=True) if name == "worker"
            ]
            seen = watch(place, store, workers)
            rows = store.ask(lambda session: told_of(session, run_id))
    return {
        "episodes": episodes,
        "at_once": seen.most,
        "full_s": round(seen.full_s, 1),
        "steps_s": round(seen.full_steps / seen.full_s, 1) if seen.full_s else 0.0,
        "ms_step": round(1000 * played.cpu_s("worker") / TURNS / episodes, 2),
        "pss_mib": round(seen.pss_mib),
        "beat_late_s": round(seen.late_s, 2),
        "lost": len(seen.lost),
        "seconds": round(seen.ended - seen.began),
        **rows,
    }


def main() -> None:
    """One run after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--episodes", type=int, nargs="+", default=[1000, 4000, 10000])
    parser.add_argument("--turn", type=float, nargs="+", default=[10.0, 30.0, 75.0])
    parser.add_argument("--journal", choices=get_args(Journal), default="off")
    given = parser.parse_args()
    with closing(open_store(given.store)) as store:
        migrate.upgrade(store)
    with tempfile.TemporaryDirectory() as home:
        for episodes, turn in zip(given.episodes, given.turn, strict=True):
            given.turn = turn
            print(json.dumps(run(given, episodes, Path(home))), flush=True)


if __name__ == "__main__":
    main()
