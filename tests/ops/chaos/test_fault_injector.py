"""The fault injector over a fake observer: what is broken when, what counts as a hang."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.db.queries.liveness import Liveness
from agentrl.db.store import Store, open_store
from agentrl.ops.chaos.cluster import Cluster
from agentrl.ops.chaos.fault_course import Course
from agentrl.ops.chaos.fault_injector import AT_ONCE, ActiveFault, FaultInjector, InjectorPace
from agentrl.ops.chaos.faults import Fault
from agentrl.ops.chaos.observer import RunObserver


class Bystander(Cluster):
    """A stage without processes; `code`: what its supervisor ended with, where it did."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.ups = 0

    def exit_code(self) -> int | None:
        return self.code

    def last_words(self) -> str:
        return "a clear error"

    def up(self) -> None:
        self.ups += 1
        self.code = None


class Rehearsal(RunObserver):
    """Everybody is healthy and works a second after `since`; the clock is that of the ticks."""

    def look(self) -> None:
        ticks = self.seen.clock + 1 if self.seen else 0.0
        self.seen = Liveness(ticks, "running", 3, 1, 1, "d", {}, {}, ("still",))

    def is_healthy(self, name: str, before: object = None) -> bool:  # noqa: ARG002
        return True

    def first_work_at(self, role: str, name: str, since: float) -> float | None:  # noqa: ARG002
        return since + 1 if role != "never" else None


@pytest.fixture
def observer(tmp_path: Path) -> RunObserver:
    store: Store = open_store(f"sqlite:///{tmp_path / 'unused.db'}")
    return Rehearsal(Bystander(), "run", store)


FAST = InjectorPace(tick_s=0.0, gap_s=(0.0, 0.0))
HURRIED = InjectorPace(tick_s=0.0, gap_s=(0.0, 0.0), recover_s=0.05)


def _injector(
    observer: RunObserver,
    faults: Sequence[Fault],
    patience_s: float = 60.0,
    pace: InjectorPace = FAST,
) -> FaultInjector:
    return FaultInjector(observer, random.Random(1), faults, patience_s, lambda _: None, pace)


def test_two_things_are_broken_at_once_but_what_must_be_alone_is(observer: RunObserver) -> None:
    broken: list[str] = []
    together: Counter[frozenset[str]] = Counter()

    def course(target: str) -> Course:
        broken.append(target)
        for _ in range(4):
            together[frozenset(broken)] += 1
            yield
        broken.remove(target)

    def fault(target: str, *, alone: bool = False) -> Fault:
        return Fault("kill", target, lambda *_: course(target), "worker", alone=alone)

    faults = [fault("a"), fault("b"), fault("c"), fault("x", alone=True), fault("y", alone=True)]
    injector = _injector(observer, faults)
    injector.inject(60)
    assert len(injector.active_faults) == 60
    assert [active.recovery_s for active in injector.active_faults] == [1.0] * 60
    assert max(map(len, together)) == AT_ONCE
    assert all(len(group) == 1 for group in together if group & {"x", "y"})
    drawn = Counter(active.fault.target for active in injector.active_faults)
    assert set(drawn) == {"a", "b", "c", "x", "y"}, "what must be alone gets its turn"


def test_the_same_seed_draws_the_same_faults(observer: RunObserver) -> None:
    def course(*_: object) -> Course:
        yield

    faults = [Fault("kill", name, course, "worker") for name in "abcdef"]
    runs = []
    for _ in range(2):
        injector = _injector(observer, faults)
        injector.inject(12)
        runs.append([active.fault.target for active in injector.active_faults])
    assert runs[0] == runs[1]


def test_a_fault_whose_role_never_works_again_is_a_hang_and_the_rest_goes_on(
    observer: RunObserver,
) -> None:
    undone: list[str] = []

    def sick(*_: object) -> Course:
        try:
            while True:
                yield
        finally:
            undone.append("healed")

    def well(*_: object) -> Course:
        yield

    for faults, said in (
        ([Fault("kill", "a", sick, "worker")], "kill a: worker never answers again within"),
        ([Fault("cut", "b", well, "never")], "cut b: never never works again within"),
    ):
        injector = _injector(observer, faults, pace=HURRIED)
        injector.inject(2)
        assert len(injector.active_faults) == 2
        assert [hang[: len(said)] for hang in injector.hangs] == [said, said]
    assert undone == ["healed", "healed"], "what a course holds is let go"


def test_work_that_is_noticed_late_is_no_hang(observer: RunObserver) -> None:
    """On a busy machine a look may take longer than a fault may last."""

    def well(*_: object) -> Course:
        yield

    fault = Fault("kill", "a", well, "worker")
    injector = _injector(observer, [fault])
    observer.look()
    injector.active_faults.append(ActiveFault(fault, well(), begun=-1e9, healthy_at=5.0))
    injector.inject(1)
    assert (injector.hangs, injector.active_faults[0].recovery_s) == ([], 1.0)


def test_nobody_acting_is_a_hang_unless_something_is_broken(observer: RunObserver) -> None:
    injector = _injector(observer, (), patience_s=0.0)
    observer.look()
    injector.watch()
    injector.watch()
    injector.watch()
    assert injector.hangs == ["no progress for 0 s"] * 2
    observer.seen = None
    injector.watch()
    injector.watch()
    assert len(injector.hangs) == 2, "a store that is away is broken"


def test_a_supervisor_that_leaves_by_itself_is_a_hang_and_started_again(
    observer: RunObserver,
) -> None:
    def course(*_: object) -> Course:
        yield

    cluster = observer.cluster
    assert isinstance(cluster, Bystander)
    cluster.code = 2
    injector = _injector(observer, [Fault("kill", "a", course, "worker")])
    injector.inject(1)
    assert injector.hangs == ["the run stopped by itself (2): a clear error"]
    assert cluster.ups == 1
