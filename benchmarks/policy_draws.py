"""How soon a new checkpoint is sampled from.

    python benchmarks/policy_draws.py [--store URL --broker URL] [--repeats 20]

Embedded by default; a Postgres URL (an empty database) and an amqp URL for the services. `swap`:
milliseconds from the commit of a checkpoint's row to the first completion that a policy server
accepted for it, the checkpoint drawn from a worker's pool; by event, and by the looks that servers
and pools take without one. The engine is scripted: loading costs nothing.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

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
from agentrl.workers.policies.pool import PolicyPool

MODEL = str(Path(__file__).resolve().parent.parent / "models" / "tiny")
TRACKS = ["current", "lagged(1)"]
PATIENCE_S = 30.0
CONFIG = Config(
    tasks={"dbbench": Task()},
    model=Model(path=MODEL),
    policy=[PolicyServer(name="bench", engine="scripted", tracks=TRACKS)],
    sampling=Sampling(strategy="current"),
)


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


def swap(bench: Bench, repeats: int, *, told: bool) -> list[float]:
    """Seconds from the commit to the first accepted completion, drawn through a pool."""
    found = []
    with (
        closing(PolicyPool.of_run(bench.store, bench.run_id, pool_config(CONFIG))) as pool,
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


def measured(bench: Bench, repeats: int) -> dict[str, Any]:
    bench.publish(told=False)
    with bench.serving(CONFIG):
        with closing(PolicyPool.of_run(bench.store, bench.run_id, pool_config(CONFIG))) as pool:
            until(lambda: len(pool.live()) == len(TRACKS))
        return {
            f"swap_{way}_ms": quartiles(swap(bench, repeats, told=told))
            for way, told in (("event", True), ("look", False))
        }


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
    print(json.dumps(result))


if __name__ == "__main__":
    main()
