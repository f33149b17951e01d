"""From the optimizer's step to the first token of the new version: by size, way and store.

    update ─▶ write (+ upload) ─▶ row ─▶ event ─▶ hash ─▶ load ─▶ probe ─▶ row ─▶ first token

The run's own parts in one process: learner, shelf, store, broker, waker, follower, local engine.

python benchmarks/weights.py --sizes 1M 5M 25M 100M
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from helpers.random_models import SHAPES, make_model, small_batch

from agentrl import broker
from agentrl.broker.api import Broker, Publisher
from agentrl.broker.events import EventListener
from agentrl.broker.messages import CheckpointPublished
from agentrl.broker.queue_names import EVENTS
from agentrl.checkpoints import directories
from agentrl.checkpoints.checkpoint_store import CheckpointStore
from agentrl.checkpoints.manifest import Probe, SaveReport
from agentrl.core import logging
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.types import CheckpointState, RunState
from agentrl.db.admin import migrate
from agentrl.db.models.processes import PolicyServer
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints as registry_checkpoints
from agentrl.db.registry import policy_servers
from agentrl.db.store import Store, now, open_store
from agentrl.serving.checkpoint_loader import tolerance
from agentrl.serving.engine_api import Request
from agentrl.serving.follower import Follower, FollowerConfig
from agentrl.serving.local.engine import LocalEngine
from agentrl.serving.served_checkpoints import ServedCheckpoints
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner

RUN = "run"
SERVER = "server"
LARGEST = 2**29  # bytes that the floor is measured with
PARTS = ("write", "score", "upload", "register", "notify", "hash", "load", "probe", "first_token")


class TimedEngine(LocalEngine):
    """Remembers when `load` began, and how long it and the score took."""

    began = loaded = probed = 0.0

    def load(self, name: str, path: Path) -> None:
        self.began = time.perf_counter()
        super().load(name, path)
        self.loaded = time.perf_counter() - self.began

    def score(self, policy: str, token_ids: Sequence[int]) -> list[float] | None:
        began = time.perf_counter()
        found = super().score(policy, token_ids)
        self.probed = time.perf_counter() - began
        return found


class TimedLearner(TorchLearner):
    """Remembers how long the probe took."""

    scored = 0.0

    def probe(self) -> Probe:
        began = time.perf_counter()
        found = super().probe()
        self.scored = time.perf_counter() - began
        return found


@dataclass
class Bench:
    """One run with its parts; `seconds`: of each part, a list over the versions."""

    store: Store
    publisher: Publisher
    checkpoint_files: CheckpointStore
    learner: TimedLearner
    engine: TimedEngine
    follower: Follower
    wake: threading.Event
    seconds: dict[str, list[float]] = field(default_factory=dict)
    bytes: int = 0

    def version(self, number: int) -> None:
        """Publish and serve a version, from the optimizer's step on."""
        name, marks = f"{RUN}-v{number}", [time.perf_counter()]

        def fill(target: Path) -> SaveReport:
            return replace(self.learner.copy_weights()(target), probe=self.learner.probe())

        directory = self.checkpoint_files.local(name)
        directories.publish(directory, fill, checkpoint_id=name, version=number, parent=None)
        marks.append(time.perf_counter())
        path = self.checkpoint_files.put(name)
        marks.append(time.perf_counter())
        self.store.transact(lambda session: session.add(row(name, path)))
        marks.append(time.perf_counter())
        event = CheckpointPublished(run_id=RUN, version=number, checkpoint_id=name)
        self.publisher.publish(EVENTS, RUN, event)
        if not self.wake.wait(30):
            raise SystemExit("the event did not arrive")
        self.wake.clear()
        marks.append(time.perf_counter())
        self.step()
        marks.append(time.perf_counter())
        self.engine.submit(Request(name, list(range(32)), 1)).result(timeout=60)
        marks.append(time.perf_counter())
        self._note(marks)
        self.bytes = sum(file.stat().st_size for file in directory.rglob("*"))

    def step(self) -> None:
        rows = self.store.ask(lambda session: registry_checkpoints.live_checkpoints(session, RUN))
        self.follower.step(rows)

    def _note(self, marks: list[float]) -> None:
        steps = [end - start for start, end in itertools.pairwise(marks)]
        spent = {
            "write": steps[0] - self.learner.scored,
            "score": self.learner.scored,
            "upload": steps[1],
            "register": steps[2],
            "notify": steps[3],
            "hash": self.engine.began - marks[4],
            "load": self.engine.loaded,
            "probe": self.engine.probed,
            "first_token": steps[5],
            "total": marks[-1] - marks[0],
        }
        for part, seconds in spent.items():
            self.seconds.setdefault(part, []).append(seconds)


def row(name: str, path: str) -> Checkpoint:
    return Checkpoint(
        checkpoint_id=name,
        run_id=RUN,
        version=int(name.rpartition("v")[2]),
        path=path,
        state=CheckpointState.LIVE,
        created_at=now(),
    )


@contextmanager
def bench(home: Path, model: Path, lora: Lora, url: str, hardware: Hardware) -> Iterator[Bench]:
    """A run at version 0, served."""
    chosen = resolve_settings(Trainer(lora=lora, learning_rate=1e-5, micro_batch_tokens=4096))
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_store(f"sqlite:///{home / 'store.db'}")))
        migrate.upgrade(store)
        link: Broker = stack.enter_context(closing(broker.connect(f"sqlite:///{home / 'q.db'}")))
        link.declare_run(RUN)
        publisher = stack.enter_context(closing(link.publisher()))
        wake, checkpoint_files = threading.Event(), CheckpointStore(home / RUN, home / "cache", url)
        stack.enter_context(closing(EventListener(link, RUN, (CheckpointPublished,), wake)))
        first = checkpoint_files.local(f"{RUN}-v0")
        directories.publish(
            first, lambda out: copy(model, out), checkpoint_id=first.name, version=0, parent=None
        )
        begin(store, first.name, checkpoint_files.put(first.name))
        engine = TimedEngine(hardware.device, hardware.dtype)
        stack.enter_context(closing(engine))
        follower_config = FollowerConfig(
            SERVER, ["current"], tolerance(hardware.dtype), cache=home / "other-cache"
        )
        follower = Follower(engine, ServedCheckpoints(), store, follower_config)
        learner = TimedLearner(first, chosen, hardware)
        made = Bench(store, publisher, checkpoint_files, learner, engine, follower, wake)
        made.step()
        time.sleep(1.0)  # until the waker listens
        wake.clear()
        yield made


def begin(store: Store, name: str, path: str) -> None:
    """The rows of a run with its first checkpoint and a server."""
    with store.write() as session:
        kind = {"name": RUN, "config": "{}", "seed": 0, "state": RunState.RUNNING}
        session.add(Run(run_id=RUN, created_at=now(), **kind))
        session.flush()
        session.add(row(name, path))
        server = PolicyServer(server_id=SERVER, run_id=RUN, name="p", engine="local", url="http://")
        policy_servers.register_server(session, server, lease_s=3600.0)


def measure(size: str, way: str, place: str, options: argparse.Namespace) -> dict[str, Any]:
    """Medians over the versions; the first warms up. `update`: seconds of the last one."""
    hardware = Hardware(options.device, options.dtype)
    lora = Lora(rank=options.rank if way == "lora" else 0)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        home = Path(folder)
        dtype = getattr(torch, options.dtype)
        parameters = make_model(size, home / "model", options.device, dtype)
        batch = small_batch()
        url = f"file://{home}/far" if place == "file://" else ""
        with bench(home, home / "model", lora, url, hardware) as made:
            updates = []
            for number in range(1, options.repeats + 2):
                if number <= options.updates:
                    began = time.perf_counter()
                    made.learner.update(batch)
                    updates.append(time.perf_counter() - began)
                made.version(number)
        disk = floor(home, made.bytes)
    found = {part: statistics.median(values[1:]) for part, values in made.seconds.items()}
    return {
        "size": size,
        "parameters": parameters,
        "way": way,
        "store": place or "local",
        "mib": round(made.bytes / 2**20, 2),
        **{part: round(found[part], 4) for part in (*PARTS, "total")},
        "disk": round(disk, 4),
        "update": round(updates[-1], 3),
        "tokens": int(batch.tokens.size),
    }


def floor(folder: Path, size: int) -> float:
    """Seconds to write so many bytes durably and to read them back: what the disk itself takes.

    Measured with at most LARGEST bytes.
    """
    content, times = os.urandom(min(size, LARGEST)), []
    for _ in range(3):
        began = time.perf_counter()
        with (folder / "floor").open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        (folder / "floor").read_bytes()
        times.append(time.perf_counter() - began)
        (folder / "floor").unlink()
    return statistics.median(times) * size / len(content)


def copy(model: Path, out: Path) -> None:
    for path in model.iterdir():
        os.link(path, out / path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=["1M", "5M", "25M"])
    parser.add_argument("--ways", nargs="+", choices=["full", "lora"], default=["full", "lora"])
    parser.add_argument("--stores", nargs="+", choices=["local", "file://"], default=["local"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=2, help="later versions are no newer")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--folder", default=None, help="where to write; the system's default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.configure("weights", level="WARNING")
    cases = [(s, w, p) for s in options.sizes for w in options.ways for p in options.stores]
    for size, way, place in cases:
        print(json.dumps(measure(size, way, place, options)), flush=True)


if __name__ == "__main__":
    main()
