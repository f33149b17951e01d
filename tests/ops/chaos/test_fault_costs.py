"""What counts as waste, and which fault excuses what."""

from dataclasses import dataclass, replace

from agentrl.db.queries.liveness import Liveness
from agentrl.ops.chaos.fault_costs import GRACE_S, QUIET_S, FaultCosts

CALM = Liveness(0.0, "running", 3, 1, 1, "d", {}, {}, ("moved", 0))


@dataclass
class Fault:
    name: str
    ended_at: float | None = None

    @property
    def target(self) -> str:
        return self.name.partition(" ")[2]


def wasted(*faults: Fault, rolled_back: int = 0, replays: int = 0, at: float = 100.0) -> FaultCosts:
    waste = FaultCosts()
    waste.look(CALM, faults, at - 1)
    waste.look(replace(CALM, rolled_back=rolled_back, replays=replays), faults, at)
    return waste


def test_updates_that_are_rolled_back_are_wasted_unless_the_trainer_died() -> None:
    assert wasted(rolled_back=3).rolled_back == 3
    assert wasted(Fault("cut store"), Fault("pause trainer"), rolled_back=3).rolled_back == 3
    for name in ("kill trainer", "kill everything", "rival trainer", "lose_commit store"):
        assert wasted(Fault(name), rolled_back=3).rolled_back == 0
        assert wasted(Fault(name, ended_at=90.0), rolled_back=3).rolled_back == 0
        long_ago = Fault(name, ended_at=99.0 - GRACE_S)
        assert wasted(long_ago, rolled_back=3).rolled_back == 3


def test_attempts_that_fail_are_wasted_unless_a_worker_or_an_environment_died() -> None:
    assert wasted(replays=2).failed_without_fault == 2
    assert wasted(Fault("kill recorder"), Fault("lock store"), replays=2).failed_without_fault == 2
    for name in ("kill worker-1", "pause worker-0", "full_disk envs", "kill container"):
        assert wasted(Fault(name), replays=2).failed_without_fault == 0
    for name in ("lose_commit store", "small_messages broker", "rival trainer"):
        assert wasted(Fault(name), replays=2).failed_without_fault == 0


def test_time_without_any_change_is_idle_while_nothing_is_broken() -> None:
    waste, broken = FaultCosts(), Fault("cut store")
    for at in (0.0, 1.0, 3.0):
        waste.look(replace(CALM, movement=(at,)), [], at)
    assert waste.idle_s == 0.0
    waste.look(replace(CALM, movement=(3.0,)), [], 20.0)
    waste.look(replace(CALM, movement=(33.0,)), [], 33.0)
    assert waste.idle_s == 30.0 - QUIET_S
    waste.look(replace(CALM, movement=(33.0,)), [broken], 90.0)
    waste.look(None, [broken], 95.0)
    broken.ended_at = 96.0
    waste.look(replace(CALM, movement=(97.0,)), [broken], 97.0)
    assert waste.idle_s == 30.0 - QUIET_S
