"""What choosing a policy for each step costs, and how soon a new checkpoint is sampled from.

    python benchmarks/policy_draws.py [--store URL --broker URL] [--repeats 20] [--json]

Embedded by default; a Postgres URL (an empty database) and an amqp URL for the services. `draws`:
64 episodes draw steps from one pool that follows the registry. `swap`: milliseconds from the commit
of a checkpoint's row to the first completion that a policy server accepted for it, the checkpoint
drawn from a worker's pool; by event, and by the looks that servers and pools take without one. The
engine is scripted: loading costs nothing. `idle`: processor time of hearing no event at all.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import event as sql_event

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from helpers.instant_run import add_checkpoint, begin

from agentrl import broker
from agentrl.broker.api import Broker
from agentrl.broker.events import EventListener
from agentrl.broker.messages import CheckpointPublished, PoolChanged
from agentrl.broker.queue_names import EVENTS
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.config.sections.policies import Model, PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.db.admin import migrate
from agentrl.db.store import Store, open_store
from agentrl.ops.configuration.serving import serving_config
from agentrl.ops.processes.worker import pool_config
from agentrl.serving.policy_process import FollowedRun, serve_policy
from agentrl.workers.policies.client import Ask, CheckpointNotServed, PolicyClient
from agentrl.workers.policies.pool import PolicyPool, Sampler

EPISODES, STEPS = 64, 200
MODEL = str(Path(__file__).resolve().parent.parent / "models" / "tiny")
TRACKS = ["current", "lagged(1)"]
PATIENCE_S = 30.0


class Bench:
    """One run of its own in the store, and its checkpoints."""

    def __init__(self, store: Store, link: Broker, folder: Path) -> None:
        self.store, self.link, self.folder = store, link, folder
        self.run_id, self._versions = begin(store, folder), 1
        link.declare_run(self.run_id)
        self.publisher = link.publisher()

    def publish(self, *, told: bool) -> tuple[str, float]:
        """A checkpoint's row, the moment it was committed, and then its event where `told`."""
        version, self._versions = self._versions, self._versions + 1
        name = f"{self.run_id}-v{version}"
        add_checkpoint(self.store, self.run_id, self.folder / name, version)
        committed = time.perf_counter()
        if told:
            event = CheckpointPublished(run_id=self.run_id, version=version, checkpoint_id=name)
            self.publisher.publish(EVENTS, self.run_id, event)
        return name, committed

    @contextmanager
    def serving(self, config: Config) -> Iterator[None]:
        """A policy server in a thread of this process."""
        stop = threading.Event()
        run = FollowedRun(self.run_id, self.store, self.link)
        arguments = (serving_config(config), config.policy[0], run, stop)
        thread = threading.Thread(target=serve_policy, args=arguments)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def configured(strategy: str) -> Config:
    server = PolicyServer(name="bench", engine="scripted", tracks=TRACKS)
    return Config(
        tasks={"dbbench": Task()},
        model=Model(path=MODEL),
        policy=[server],
        sampling=msgspec.convert({"strategy": strategy}, Sampling),
    )


def draws(bench: Bench, strategy: str) -> dict[str, float]:
    """Microseconds of processor time of a draw, queries of a step, while 64 episodes draw."""
    config, asked = configured(strategy), list[str]()
    go_on = threading.Event()

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    with closing(PolicyPool.of_run(bench.store, bench.run_id, pool_config(config))) as pool:
        pool.refresh(5.0)
        weigh = pool.weigh("dbbench")
        episodes = [Sampler(pool, config.sampling, str(n), weigh) for n in range(EPISODES)]
        sql_event.listen(bench.store.engine, "before_cursor_execute", count)
        began = time.thread_time()
        for step in range(STEPS):
            for sampler in episodes:
                sampler.draw(wait_s=1.0, stop=go_on)
                sampler.count_tokens(step)
        seconds = time.thread_time() - began
        sql_event.remove(bench.store.engine, "before_cursor_execute", count)
    steps = EPISODES * STEPS
    selects = [each for each in asked if each.lstrip().upper().startswith("SELECT")]
    return {"us_per_draw": seconds / steps * 1e6, "queries_per_step": len(selects) / steps}


def swap(bench: Bench, repeats: int, *, told: bool) -> list[float]:
    """Seconds from the commit to the first accepted completion, drawn through a pool."""
    config, found = configured("current"), []
    with (
        closing(PolicyPool.of_run(bench.store, bench.run_id, pool_config(config))) as pool,
        closing(PolicyClient()) as client,
        listening(bench, pool.refresh_wanted, told=told),
    ):
        for number in range(repeats):
            time.sleep(0.37 * (number % 7) / 7)  # anywhere between two looks
            name, committed = bench.publish(told=told)
            accepted(pool, client, name)
            found.append(time.perf_counter() - committed)
    return found


@contextmanager
def listening(bench: Bench, wanted: threading.Event, *, told: bool) -> Iterator[None]:
    """A worker's pool hears of changes, or only looks."""
    if not told:
        yield
        return
    with closing(EventListener(bench.link, bench.run_id, (PoolChanged,), wanted)):
        time.sleep(0.5)
        yield


def accepted(pool: PolicyPool, client: PolicyClient, name: str) -> None:
    """Return once a server completed a prompt with the checkpoint."""
    ask = Ask([1, 2, 3], 4, 1.0, (), 0, "")
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for policy in pool.live():
            if policy.checkpoint_id == name and policy.track == "current":
                try:
                    client.complete(policy, ask, timeout_s=5.0)
                except CheckpointNotServed:
                    continue
                return
        time.sleep(0.001)
    raise SystemExit(f"{name} was not served within {PATIENCE_S} s")


def idle(bench: Bench, seconds: float = 5.0) -> float:
    """Share of one core that listening takes while nothing comes."""
    woken = threading.Event()
    with closing(EventListener(bench.link, bench.run_id, (PoolChanged,), woken)):
        woken.wait(5)
        began, wall = time.process_time(), time.perf_counter()
        time.sleep(seconds)
        return (time.process_time() - began) / (time.perf_counter() - wall)


def measured(bench: Bench, repeats: int) -> dict[str, Any]:
    bench.publish(told=False)
    result: dict[str, Any] = {"idle_share": idle(bench)}
    with bench.serving(configured("current")):
        current = pool_config(configured("current"))
        with closing(PolicyPool.of_run(bench.store, bench.run_id, current)) as pool:
            until(lambda: len(pool.live()) == len(TRACKS))
        for strategy in ("current", "mixed", "adaptive"):
            result[f"draws_{strategy}"] = draws(bench, strategy)
        for way, told in (("event", True), ("look", False)):
            result[f"swap_{way}_ms"] = quartiles(swap(bench, repeats, told=told))
    return result


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > deadline:
            raise SystemExit("the policy server did not come up")
        time.sleep(0.02)


def quartiles(seconds: list[float]) -> dict[str, float]:
    lower, middle, upper = (1e3 * each for each in statistics.quantiles(seconds, n=4))
    return {"lower": lower, "median": middle, "upper": upper, "longest": 1e3 * max(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="default: SQLite in a temporary folder")
    parser.add_argument("--broker", help="default: a queue file in a temporary folder")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            closing(open_store(options.store or f"sqlite:///{folder / 'store.db'}")) as store,
            closing(broker.connect(options.broker or f"sqlite:///{folder / 'queue.db'}")) as link,
        ):
            migrate.upgrade(store)
            bench = Bench(store, link, folder)
            try:
                result = measured(bench, options.repeats)
            finally:
                bench.publisher.close()
                link.delete_run(bench.run_id)
    print(json.dumps(result) if options.json else table(result))


def table(result: dict[str, Any]) -> str:
    rows = [("idle listener, share of a core", f"{result['idle_share']:.4f}")]
    for strategy in ("current", "mixed", "adaptive"):
        found = result[f"draws_{strategy}"]
        draw, queries = found["us_per_draw"], found["queries_per_step"]
        text = f"{draw:.1f} µs a draw, {queries:.5f} queries a step"
        rows.append((strategy, text))
    for way in ("event", "look"):
        each = result[f"swap_{way}_ms"]
        lower, middle, upper, longest = (round(value) for value in each.values())
        text = f"{middle} ms (quartiles {lower}–{upper}, longest {longest})"
        rows.append((f"commit to first completion, by {way}", text))
    return "\n".join(f"{name:42} {text}" for name, text in rows)


if __name__ == "__main__":
    main()
