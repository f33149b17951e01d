"""The processes of one run over a real store and a loose broker, each moved by the test alone.

Real: Dispatcher.tick, EpisodeWorker.run, record, train with Inbox and Ledger, and all of db/. Not
real: the environment (the test says how an attempt ends), the learner (its weights are the list of
bodies it learned from), the broker, the clock.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from inline import DeferredExecutor, InlineExecutor
from loose_broker import LooseBroker, LooseConsumer
from pause_points import Killed, Process
from paused_processes import STEP, WORKER, KeptSteps, ListLearner, PausedWorker, Slot
from protocol_stores import Beside
from sqlalchemy import update
from trajectories import body_of, trajectory

from agentrl.broker.messages import RunEpisode
from agentrl.broker.queue_names import EVENTS
from agentrl.checkpoints.checkpoint_store import CheckpointStore
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer
from agentrl.core.errors import BrokerError
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import CheckpointState, RunState
from agentrl.db.models.runs import Run as RunRow
from agentrl.db.models.updates import Checkpoint
from agentrl.db.store import Store, now
from agentrl.db.transitions import runs
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.envs.contract import Item
from agentrl.ops.processes.dispatcher import dispatcher_config
from agentrl.ops.processes.trainer import ledger_config
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.group_selection import InboxBounds
from agentrl.trainer.inbox import Inbox
from agentrl.trainer.ledger import Ledger
from agentrl.trainer.loop import train
from agentrl.workers.dispatch.dispatcher import Dispatcher
from agentrl.workers.dispatch.item_stream import ItemStream
from agentrl.workers.recorder import record_bodies

PLAN = Dispatch(groups_per_update=2, group_size=2, max_staleness=1, max_attempts=2)
BOUND = 4  # groups open at once
SMALL = (trajectory(spans=((1, 1),)), trajectory(spans=((1, 2), (1, 1))))
WORKERS = TRAINERS = DISPATCHERS = 2


class PausedRun:
    """One run and its processes."""

    def __init__(self, store: Store, run_id: str, home: Path, beside: Beside) -> None:
        self.store, self.run_id, self.home, self._beside = store, run_id, home, beside
        self.broker = LooseBroker()
        self.commands: list[RunEpisode] = []
        self.attempts: list[tuple[int, Process]] = []  # (worker, its episode)
        self.claims: set[tuple[str, int]] = set()
        self.kept = KeptSteps(self._owner)
        self.bodies = 0
        self.trainings = 0
        self.config = Config(
            tasks={"dbbench": Task()},
            run=Run(name=run_id, home=str(home)),
            dispatch=PLAN,
            worker=WORKER,
            trainer=Trainer(snapshot_every=2, keep_checkpoints=2),
        )
        self._begin()
        self.workers = [self._worker(place) for place in range(WORKERS)]
        self.dispatchers = [self._dispatcher() for _ in range(DISPATCHERS)]
        self.recorder = Slot(self._recorder)
        self.trainers = [Slot(self._trainer) for _ in range(TRAINERS)]

    def tick(self, place: int, sends: int) -> None:
        """A dispatcher's round; the tasks broker goes away after so many sends."""

        def send(command: RunEpisode) -> None:
            nonlocal sends
            sends -= 1
            if sends < 0:
                raise BrokerError("tasks broker: away")
            self.commands.append(command)

        try:
            self.dispatchers[place].tick(send)
        except BrokerError:
            return
        except Killed:
            self.dispatchers[place] = self._dispatcher()

    def tick_for(self, seconds: float) -> None:
        """The dispatcher that holds the lease, if it lives, has held it for so long, idly."""
        owners = [dispatcher._owner for dispatcher in self.dispatchers]
        with self.store.write() as session:
            session.execute(
                update(RunRow)
                .where(RunRow.run_id == self.run_id, RunRow.dispatcher.in_(owners))
                .where(RunRow.dispatcher_until > 0)
                .values(dispatcher_until=RunRow.dispatcher_until + seconds)
            )

    def deliver(self, place: int, worker: int, *, again: bool) -> None:
        """A command reaches a worker; `again`: it stays in its queue too."""
        if not self.commands:
            return
        place %= len(self.commands)
        command = self.commands[place] if again else self.commands.pop(place)
        running = self.workers[worker]
        episode = Process(lambda: running.run(command))
        self.attempts.append((worker, episode))
        if self._go(worker, episode, None):
            assert episode.waiting is not None
            claimed: ClaimedEpisode = episode.waiting[1]
            key = (claimed.episode_id, claimed.fence)
            assert key not in self.claims, f"claimed twice: {key}"
            self.claims.add(key)

    def episode(self, place: int, answer: Callable[[str, Any], object]) -> None:
        """An attempt goes on to where it waits next."""
        if not self.attempts:
            return
        worker, episode = self.attempts[place % len(self.attempts)]
        assert episode.waiting is not None
        self._go(worker, episode, answer(*episode.waiting))

    def _go(self, worker: int, episode: Process, answer: object) -> bool:
        try:
            alive = episode.go(answer)
        except Killed:
            self.kill_worker(worker)
            return False
        if not alive:
            self.attempts.remove((worker, episode))
        return alive

    def answer(self, what: str, claimed: Any, end: Any, publish: str) -> object:
        """How an attempt ends, then what becomes of its body. `mixed`: every other member wins."""
        if what != "attempt":
            return publish
        if isinstance(end, Exception) or end == STEP:
            return end
        return self.body(claimed, float(claimed.member % 2) if end == "mixed" else end)

    def round(self, number: int, *, fresh: bool) -> None:
        """Every process does what it can, once. `fresh`: with new workers and one trainer."""
        for place, worker in enumerate(self.workers):
            if fresh and worker.gave_back:
                self.kill_worker(place)
            self.beat(place)
        self.tick(number % DISPATCHERS, 99)
        while self.commands:
            self.deliver(0, number % WORKERS, again=False)
        while self.attempts:
            self.episode(0, lambda what, claimed: self.answer(what, claimed, "mixed", "confirmed"))
        self.recorder.go([0] * 64)
        if fresh:
            self.trainers[1].kill()
        for _ in range(10):
            self.trainers[0].go([0] * 64)

    def beat(self, worker: int) -> None:
        """Its lease is extended, or it dies of it."""
        try:
            self.workers[worker].beat()
        except Killed:
            self.kill_worker(worker)

    def kill_worker(self, worker: int) -> None:
        """The process with all its attempts; another takes its place."""
        for each in [each for each in self.attempts if each[0] == worker]:
            each[1].kill()
            self.attempts.remove(each)
        self.workers[worker].end()
        self.workers[worker] = self._worker(worker)

    def kill(self) -> None:
        """Everything."""
        for worker in range(WORKERS):
            self.kill_worker(worker)
            self.workers[worker].end()
        for slot in (self.recorder, *self.trainers):
            slot.kill()

    def body(self, claimed: ClaimedEpisode, reward: float) -> Trajectory:
        """A body unlike every other, sampled at the run's version."""
        self.bodies += 1
        question = (
            "SELECT checkpoint_id, version FROM checkpoints WHERE run_id = :run AND state = 'live'"
            " ORDER BY version DESC LIMIT 1"
        )
        ((name, version),) = self._beside.ask(question, run=self.run_id)
        return body_of(
            claimed,
            SMALL[self.bodies % 2],
            {"checkpoint_id": name, "version": version},
            run_id=self.run_id,
            reward=reward,
            metrics={"number": float(self.bodies)},
        )

    def _owner(self, episode_id: str) -> tuple[str, int]:
        """State and fence of an episode, as committed."""
        question = "SELECT state, fence FROM episodes WHERE episode_id = :e"
        ((state, fence),) = self._beside.ask(question, e=episode_id)
        return state, fence

    def move(self, state: RunState) -> None:
        self.store.transact(lambda s: runs.move_run(s, self.run_id, state))

    def _begin(self) -> None:
        with self.store.write() as session:
            session.add(
                RunRow(
                    run_id=self.run_id,
                    name=self.run_id,
                    config="{}",
                    seed=0,
                    state=RunState.RUNNING,
                    created_at=now(),
                )
            )
            session.flush()
            session.add(
                Checkpoint(
                    checkpoint_id=f"{self.run_id}-v000000",
                    run_id=self.run_id,
                    version=0,
                    path="nowhere",
                    state=CheckpointState.LIVE,
                    created_at=now(),
                )
            )

    def _worker(self, place: int) -> PausedWorker:
        while True:
            self.bodies += 1
            with suppress(Killed):  # while it starts; then another is started
                return PausedWorker(self, f"worker-{self.run_id}-{place}-{self.bodies}")

    def _dispatcher(self) -> Dispatcher:
        items = [Item("dbbench", f"item-{number}", {}) for number in range(5)]
        return Dispatcher(
            dispatcher_config(self.config),
            self.run_id,
            self.store,
            {"dbbench": ItemStream(items, 0)},
        )

    def _recorder(self) -> tuple[Process, LooseConsumer]:
        consumer = LooseConsumer(self.broker, "recorder")
        stop = threading.Event()
        return Process(lambda: record_bodies(self.store, consumer, self.run_id, stop)), consumer

    def _trainer(self) -> tuple[Process, LooseConsumer]:
        """Every second one commits an update only when the next one may step."""
        consumer = LooseConsumer(self.broker, "trainer")
        self.trainings += 1
        publishing = DeferredExecutor() if self.trainings % 2 else InlineExecutor()
        bounds = InboxBounds(1, 2, PLAN.max_staleness, PLAN.max_lag, None, PLAN.max_attempts)

        def work() -> None:
            inbox = Inbox(self.store, consumer, self.run_id, bounds)
            checkpoint_files = CheckpointStore(self.home / "checkpoints")
            announce = partial(self.broker.publish, EVENTS, self.run_id)
            ledger = Ledger(
                ledger_config(self.config),
                self.run_id,
                self.store,
                announce,
                checkpoint_files,
                background=InlineExecutor(),
                publishing=publishing,
            )
            train(
                inbox,
                ListLearner(),
                ledger,
                resolve_settings(self.config.trainer),
                threading.Event(),
            )

        return Process(work), consumer
