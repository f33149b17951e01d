"""The parts of a run that a test holds in its hand (`paused_run.py`): learner, worker, slot."""

import dataclasses
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from loose_broker import LooseConsumer
from pause_points import Killed, Process, pause
from trajectories import trajectory

from agentrl.checkpoints.manifest import Probe, SaveReport
from agentrl.core.config.sections.episodes import Worker as WorkerSection
from agentrl.core.journal import SampledStep
from agentrl.core.trajectory import Trajectory
from agentrl.db.models.processes import Worker
from agentrl.db.transitions import runs
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.db.transitions.trajectories.journal import NewStep, append_steps
from agentrl.db.transitions.updates import UpdateRefused
from agentrl.trainer.engines.learner import OPEN, Gates, Metrics, WeightsWriter
from agentrl.trainer.snapshots.snapshots import State
from agentrl.workers.episode_context import Clock
from agentrl.workers.journal import Takeover, require_owned
from agentrl.workers.lease import WorkerLease
from agentrl.workers.settlement import Settlement
from agentrl.workers.waiting import WaitingAttempts
from agentrl.workers.worker import EpisodeWorker

if TYPE_CHECKING:
    from paused_run import PausedRun

WORKER = WorkerSection(attempt_deadline_s=60.0, journal="steps")
STEP = "step"  # the answer to an attempt that shall sample one more

PLAIN = trajectory(spans=((1, 1),))


class KeptSteps:
    """The steps whose storing was confirmed, of the attempt that opened each episode last."""

    def __init__(self, owner: Callable[[str], tuple[str, int]]) -> None:
        """`owner`: state and fence of an episode, as committed."""
        self.of: dict[str, list[SampledStep]] = {}
        self.attempt: dict[str, int] = {}  # that stored the last of them
        self.wrong: list[str] = []
        self._number = 0
        self._owner = owner

    def begin(self, claimed: ClaimedEpisode, recorded: Sequence[SampledStep]) -> None:
        """An attempt found these. It may start anew, but nothing may be missing in between."""
        before = self.of.get(claimed.episode_id, [])
        if recorded and list(recorded[: len(before)]) != before:
            self.wrong.append(f"{claimed} continues {len(recorded)} steps of {len(before)}")
        self.of[claimed.episode_id] = list(recorded)

    def new_step(self) -> SampledStep:
        """A step unlike every other."""
        self._number += 1
        body, step = PLAIN, PLAIN.steps[0]
        return SampledStep(
            step=msgspec.structs.replace(step, requested_at=float(self._number)),
            policy=body.policies[0],
            context=body.token_ids[:4],
            token_ids=body.token_ids[4:],
            logprobs=body.logprobs[4:],
        )

    def stored(self, claimed: ClaimedEpisode, step: SampledStep) -> None:
        if self._owner(claimed.episode_id) != ("running", claimed.fence):
            self.wrong.append(f"{claimed} stored a step of an episode that it does not own")
        self.of[claimed.episode_id].append(step)
        self.attempt[claimed.episode_id] = claimed.attempt


class ListLearner:
    """Weights are the bodies they were trained on, in order."""

    def __init__(self) -> None:
        self.learned: list[list[Any]] = []

    def update(self, groups: Any, gates: Gates = OPEN) -> Metrics:
        pause("update")
        gates.before_step()
        for group in groups:
            for body in group.members:
                self.learned.append([body.episode_id, body.fence, body.sha256])
        return Metrics({"loss": 0.5})

    def copy_weights(self) -> WeightsWriter:
        copy = json.dumps(self.learned)

        def write(directory: Path) -> SaveReport:
            (directory / "learned.json").write_text(copy)
            return SaveReport()

        return write

    def probe(self) -> Probe:
        return Probe([1, 2], [-0.5])

    def state(self) -> State:
        return State({"none": torch.zeros(1)}, {"learned": self.learned})

    def load_state(self, state: State) -> None:
        self.learned = [list(each) for each in state.values["learned"]]


class PausedEvent(threading.Event):
    """Each wait ends when the test says so, with what it says."""

    def wait(self, _timeout: float | None = None) -> bool:
        return bool(pause("wait"))


class PausedLease(WorkerLease):
    """The test says when it is extended."""

    def __init__(self, run: "PausedRun", name: str) -> None:
        super().__init__(run.store, run.run_id, WORKER, Clock(lambda: 0.0), set)
        self.worker_id = name
        self._closed = PausedEvent()

    def process(self) -> Process:
        """The thread that extends the lease, on its own connection."""
        return Process(self._beat_until_closed)

    def disconnect(self) -> None:
        self._beat_store.close()


class PausedAttempts:
    """Attempts that sample a step, or end, when the test says so and as it says."""

    def __init__(self, run: "PausedRun") -> None:
        self._store = run.store
        self._takeover = Takeover(run.store, run.run_id, self._store_step)
        self._kept = run.kept

    def run(self, claimed: ClaimedEpisode) -> Trajectory:
        journal = self._takeover.open(claimed)
        self._kept.begin(claimed, journal._recorded)
        while (answer := pause("attempt", claimed)) == STEP:
            step = self._kept.new_step()
            journal.append(step)
            self._kept.stored(claimed, step)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    def _store_step(self, step: NewStep) -> None:
        refused = self._store.transact(lambda s: append_steps(s, [step]))
        require_owned(step, refused)


class PausedWorker(EpisodeWorker):
    """The test says when its lease is extended, and how its attempts end."""

    def __init__(self, run: "PausedRun", name: str) -> None:
        self.stop = threading.Event()
        self.gave_back = False
        self.lease = self._paused_lease = PausedLease(run, name)
        self._run_id = run.run_id
        self._running: set[tuple[str, int]] = set()
        self._running_lock = threading.Lock()
        self._attempts = PausedAttempts(run)  # type: ignore[assignment]
        self._settlement = Settlement(
            run.store, run.broker, run.config.dispatch, self.stop, WaitingAttempts()
        )
        self._beats = self._paused_lease.process()
        row = Worker(worker_id=name, run_id=run.run_id, host="here", pid=1)
        run.store.transact(lambda s: runs.register_worker(s, row, lease_s=WORKER.lease_s))

    def beat(self) -> None:
        """The lease's own thread extends it, on its own connection. Raises Killed."""
        if self._beats.waiting is None:
            self._beats.go()
        assert self._beats.go(False), "the thread that keeps the lease has ended"

    def end(self) -> None:
        """The process is gone, with its connection."""
        self._beats.kill()
        self._paused_lease.disconnect()

    def leave(self) -> None:
        """Give all attempts back, as a worker does that does not wait for them."""
        with suppress(Killed):
            self.lease.give_back()
        self.gave_back = True


@dataclasses.dataclass
class Slot:
    """A process that is started again when it has died."""

    start: Callable[[], tuple[Process, LooseConsumer]]
    process: Process | None = None
    consumer: LooseConsumer | None = None

    def go(self, answer: object = None) -> str:
        """One stretch; what it waits for then, empty where it ended or died."""
        if self.process is None:
            self.process, self.consumer = self.start()
        try:
            alive = self.process.go(answer)
        except (Killed, UpdateRefused):
            alive = False
        if not alive:
            self.kill()
            return ""
        assert self.process.waiting is not None
        return self.process.waiting[0]

    def kill(self) -> None:
        if self.process is not None and self.consumer is not None:
            self.process.kill()
            self.consumer.abandon()
        self.process = self.consumer = None
