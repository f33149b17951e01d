"""The ordeal over a scene that stands by itself: what is broken when, what counts as a hang."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.db.queries.liveness import Vitals
from agentrl.db.store import Store, open_store
from agentrl.ops.chaos.cluster import Stage
from agentrl.ops.chaos.course import Course
from agentrl.ops.chaos.fault_injector import AT_ONCE, Ordeal, Pace, Wound
from agentrl.ops.chaos.faults import Fault
from agentrl.ops.chaos.observer import Scene


class Bystander(Stage):
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


class Rehearsal(Scene):
    """Everybody is healthy and works a second after `since`; the clock is that of the ticks."""

    def look(self) -> None:
        ticks = self.seen.clock + 1 if self.seen else 0.0
        self.seen = Vitals(ticks, "running", 3, 1, 1, "d", {}, {}, ("still",))

    def healthy(self, name: str, before: object = None) -> bool:  # noqa: ARG002
        return True

    def worked(self, role: str, name: str, since: float) -> float | None:  # noqa: ARG002
        return since + 1 if role != "never" else None


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    store: Store = open_store(f"sqlite:///{tmp_path / 'unused.db'}")
    return Rehearsal(Bystander(), "run", store)


FAST = Pace(tick_s=0.0, gap_s=(0.0, 0.0))
HURRIED = Pace(tick_s=0.0, gap_s=(0.0, 0.0), recover_s=0.05)


def _ordeal(
    scene: Scene, faults: Sequence[Fault], patience_s: float = 60.0, pace: Pace = FAST
) -> Ordeal:
    return Ordeal(scene, random.Random(1), faults, patience_s, lambda _: None, pace)


def test_two_things_are_broken_at_once_but_what_must_be_alone_is(scene: Scene) -> None:
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
    ordeal = _ordeal(scene, faults)
    ordeal.suffer(60)
    assert len(ordeal.wounds) == 60
    assert [wound.recovery_s for wound in ordeal.wounds] == [1.0] * 60
    assert max(map(len, together)) == AT_ONCE
    assert all(len(group) == 1 for group in together if group & {"x", "y"})
    drawn = Counter(wound.fault.target for wound in ordeal.wounds)
    assert set(drawn) == {"a", "b", "c", "x", "y"}, "what must be alone gets its turn"


def test_the_same_seed_draws_the_same_faults(scene: Scene) -> None:
    def course(*_: object) -> Course:
        yield

    faults = [Fault("kill", name, course, "worker") for name in "abcdef"]
    runs = []
    for _ in range(2):
        ordeal = _ordeal(scene, faults)
        ordeal.suffer(12)
        runs.append([wound.fault.target for wound in ordeal.wounds])
    assert runs[0] == runs[1]


def test_a_fault_whose_role_never_works_again_is_a_hang_and_the_rest_goes_on(
    scene: Scene,
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
        ordeal = _ordeal(scene, faults, pace=HURRIED)
        ordeal.suffer(2)
        assert len(ordeal.wounds) == 2
        assert [hang[: len(said)] for hang in ordeal.hangs] == [said, said]
    assert undone == ["healed", "healed"], "what a course holds is let go"


def test_work_that_is_noticed_late_is_no_hang(scene: Scene) -> None:
    """On a busy machine a look may take longer than a fault may last."""

    def well(*_: object) -> Course:
        yield

    fault = Fault("kill", "a", well, "worker")
    ordeal = _ordeal(scene, [fault])
    scene.look()
    ordeal.wounds.append(Wound(fault, well(), begun=-1e9, healthy_at=5.0))
    ordeal.suffer(1)
    assert (ordeal.hangs, ordeal.wounds[0].recovery_s) == ([], 1.0)


def test_nobody_acting_is_a_hang_unless_something_is_broken(scene: Scene) -> None:
    ordeal = _ordeal(scene, (), patience_s=0.0)
    scene.look()
    ordeal.watch()
    ordeal.watch()
    ordeal.watch()
    assert ordeal.hangs == ["no progress for 0 s"] * 2
    scene.seen = None
    ordeal.watch()
    ordeal.watch()
    assert len(ordeal.hangs) == 2, "a store that is away is broken"


def test_a_supervisor_that_leaves_by_itself_is_a_hang_and_started_again(scene: Scene) -> None:
    def course(*_: object) -> Course:
        yield

    stage = scene.stage
    assert isinstance(stage, Bystander)
    stage.code = 2
    ordeal = _ordeal(scene, [Fault("kill", "a", course, "worker")])
    ordeal.suffer(1)
    assert ordeal.hangs == ["the run stopped by itself (2): a clear error"]
    assert stage.ups == 1
