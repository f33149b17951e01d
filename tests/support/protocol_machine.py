"""The whole protocol, model checked: any order of things, faults between any two statements.

Two runs share a store and know nothing of each other. After every step the invariants of
`protocol_invariants.py` hold; at the end all is let go on, and nothing is lost, doubled or stuck.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from loose_broker import PUBLISHED
from pause_points import Faults
from paused_processes import STEP
from paused_run import DISPATCHERS, TRAINERS, WORKERS, PausedRun
from protocol_invariants import Witness
from protocol_stores import Beside, CheckedStore, Database

from agentrl.core.errors import EnvironmentFailure, PolicyError
from agentrl.core.types import RunState
from agentrl.workers.policies.pool import NoLivePolicy

RUNS = 2
ENDS: list[Any] = [
    *["mixed"] * 4,
    *[STEP] * 3,
    0.0,
    1.0,
    EnvironmentFailure("the environment broke"),
    PolicyError("the policy broke"),
    NoLivePolicy("no policy lives"),
    ValueError("a mistake of ours"),
]
RUN = st.integers(0, RUNS - 1)
PLACE = st.integers(0, 7)
FAULT = st.none() | st.none() | st.tuples(st.sampled_from(Faults.KINDS), st.integers(0, 14))
QUEUE = st.sampled_from(["recorder", "trainer"])
PLACES = st.lists(PLACE, max_size=6)
PUBLISH = st.sampled_from([*["confirmed"] * 6, *PUBLISHED])


BOOL = st.booleans()
WORKER = st.integers(0, WORKERS - 1)
SOME = st.lists(PLACE, min_size=1, max_size=8)
SECONDS = st.sampled_from([0.5, 5.0, 5.0, 16.0, 31.0, 61.0])
STATE = st.sampled_from([RunState.PAUSED, RunState.RUNNING, RunState.RUNNING])

# Weight, method and arguments. One rule draws from all: hypothesis would leave rules out of a whole
# example, and without dispatchers, say, there is little to see.
MOVES: list[tuple[int, str, tuple[st.SearchStrategy[Any], ...]]] = [
    (4, "tick", (RUN, st.integers(0, DISPATCHERS - 1), st.integers(0, 9), FAULT)),
    (2, "deliver", (RUN, PLACE, WORKER, BOOL, FAULT)),
    (1, "deliver_twice", (RUN, PLACE)),
    (3, "deliver_many", (RUN, SOME)),
    (6, "episodes", (RUN, SOME, st.sampled_from(ENDS), PUBLISH, st.integers(1, 3), FAULT)),
    (1, "overtake", (RUN, PLACE, st.sampled_from(ENDS))),
    (2, "beat", (RUN, WORKER, FAULT)),
    (1, "end_worker", (RUN, WORKER, BOOL, FAULT)),
    (3, "recorder", (RUN, PLACES, FAULT)),
    (5, "trainer", (RUN, st.sampled_from([0, 0, 1]), PLACES, st.integers(1, 8), FAULT)),
    (2, "go_on", (RUN, st.integers(0, 3), FAULT)),
    (1, "kill", (RUN, st.integers(0, TRAINERS))),
    (2, "mishap", (RUN, QUEUE, PLACE, BOOL)),
    (1, "lose_command", (RUN, PLACE)),
    (3, "wait", (SECONDS, st.sampled_from([True, True, True, False]))),
    (1, "pause", (RUN, STATE)),
]
MOVE = st.one_of(
    [st.tuples(st.just(name), *given) for weight, name, given in MOVES for _ in range(weight)]
)


class Protocol(RuleBasedStateMachine):
    clock: Database
    steps = 0

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="protocol-"))
        self.faults = Faults(self.clock)
        self.store = CheckedStore(self.clock.begin(self.home), self.clock, self.faults)
        self.beside = Beside(self.store, self.clock)
        self.runs = [
            PausedRun(self.store, f"run-{n}", self.home / f"{n}", self.beside) for n in range(RUNS)
        ]
        self.witness = Witness(self.beside, self.runs)

    def _under(self, fault: tuple[str, int] | None) -> None:
        self.clock.now += 0.01
        self.faults.arm(fault)

    @rule(move=MOVE)
    def step(self, move: tuple[Any, ...]) -> None:
        name, *given = move
        getattr(self, name)(*given)

    def tick(self, run: int, place: int, sends: int, fault: Any) -> None:
        self._under(fault)
        self.runs[run].tick(place, sends)

    def deliver(self, run: int, place: int, worker: int, again: bool, fault: Any) -> None:
        self._under(fault)
        self.runs[run].deliver(place, worker, again=again)

    def deliver_twice(self, run: int, place: int) -> None:
        """A command reaches both workers, one after the other."""
        self._under(None)
        self.runs[run].deliver(place, 0, again=True)
        self.runs[run].deliver(place, 1, again=False)

    def deliver_many(self, run: int, places: list[int]) -> None:
        self._under(None)
        for place in places:
            self.runs[run].deliver(place, place % WORKERS, again=False)

    def episodes(  # noqa: PLR0917
        self, run: int, places: list[int], end: Any, publish: str, stretches: int, fault: Any
    ) -> None:
        """Some attempts get as far as they wait next, or further."""
        of = self.runs[run]
        self._under(fault)
        for place in places * stretches:
            of.episode(place, lambda what, claimed: of.answer(what, claimed, end, publish))

    def overtake(self, run: int, place: int, end: Any) -> None:
        """An attempt is given up while it hangs; its successor begins, and only then it ends."""
        self._under(None)
        of = self.runs[run]
        late = of.attempts[place % len(of.attempts)][1] if of.attempts else None
        self.wait(61.0, ticking=True)
        for dispatcher in range(DISPATCHERS):
            of.tick(dispatcher, 99)
        while of.commands:
            of.deliver(0, place % WORKERS, again=False)
        for number, (_, attempt) in enumerate(of.attempts):
            if attempt is late:
                of.episode(number, lambda what, claimed: of.answer(what, claimed, end, "confirmed"))
                break

    def beat(self, run: int, worker: int, fault: Any) -> None:
        self._under(fault)
        self.runs[run].beat(worker)

    def end_worker(self, run: int, worker: int, leaves: bool, fault: Any) -> None:
        """SIGKILL, or SIGTERM to a process whose episodes hang and go on for a moment."""
        self._under(fault if leaves else None)
        if leaves:
            self.runs[run].workers[worker].leave()
        else:
            self.runs[run].kill_worker(worker)

    def recorder(self, run: int, places: list[int], fault: Any) -> None:
        self._under(fault)
        self.runs[run].recorder.go(places)

    def trainer(self, run: int, place: int, places: list[int], stretches: int, fault: Any) -> None:
        self._under(fault)
        for _ in range(stretches):
            if not self.runs[run].trainers[place].go(places):
                break

    def go_on(self, run: int, number: int, fault: Any) -> None:
        """All that it can do now, with something in its way."""
        self._under(fault)
        self.runs[run].round(number, fresh=False)

    def kill(self, run: int, place: int) -> None:
        self._under(None)
        of = self.runs[run]
        (of.trainers[place] if place < TRAINERS else of.recorder).kill()

    def mishap(self, run: int, queue: str, place: int, lose: bool) -> None:
        broker = self.runs[run].broker
        (broker.lose if lose else broker.repeat)(queue, place)

    def lose_command(self, run: int, place: int) -> None:
        if commands := self.runs[run].commands:
            commands.pop(place % len(commands))

    def wait(self, seconds: float, ticking: bool) -> None:
        """Time passes; `ticking`: while dispatchers tick, and find nothing to do."""
        self.clock.now += seconds
        for run in self.runs if ticking else ():
            run.tick_for(seconds)

    def pause(self, run: int, state: RunState) -> None:
        self._under(None)
        self.runs[run].move(state)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "witness"):
            self.faults.arm(None)
            self.witness.look()
            type(self).steps += 1

    def teardown(self) -> None:
        if not hasattr(self, "witness"):
            return
        try:
            self.faults.arm(None)
            for run in self.runs:
                self._let_go_on(run)
            self._end()
        finally:
            for run in self.runs:
                run.kill()
            self.beside.close()
            self.store.close()
            shutil.rmtree(self.home)

    def _let_go_on(self, run: PausedRun) -> None:
        """Whatever happened before: with nothing in its way the run makes two more updates."""
        run.move(RunState.RUNNING)
        versions = self.witness.version(run) + 2
        for number in range(60):
            self._under(None)
            self.wait(10.0, ticking=True)
            run.round(number, fresh=True)
            self.witness.look()
            if self.witness.version(run) >= versions:
                return
        raise AssertionError(f"{run.run_id} stands still: {self.witness.told(run)}")

    def _end(self) -> None:
        for run in self.runs:
            run.move(RunState.STOPPED)
            run.tick(0, 0)
            for _ in range(4):
                run.recorder.go([0] * 1000)
            for trainer in run.trainers:
                trainer.kill()
                for _ in range(3):
                    if not trainer.go([]):
                        break
        self.clock.now += 1000.0
        self.witness.look()
        self.witness.is_quiet()


def check(database: Database, examples: int, steps: int) -> int:
    """How many steps were made."""

    class OnDatabase(Protocol):
        clock = database
        steps = 0

    run_state_machine_as_test(
        OnDatabase,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            report_multiple_bugs=False,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    return OnDatabase.steps
