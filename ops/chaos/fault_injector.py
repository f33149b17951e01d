"""Injects faults at seeded random times, measures recoveries and detects hangs.

until all faults are over, at every tick:
    look at the rows ─▶ resume what is broken ─▶ who answers again must work ─▶ break something
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentrl.core.logging import get_logger
from agentrl.ops.chaos.fault_costs import FaultCosts
from agentrl.ops.chaos.fault_course import Course
from agentrl.ops.chaos.faults import Fault
from agentrl.ops.chaos.observer import RunObserver

AT_ONCE = 2  # things broken at the same time

log = get_logger()


@dataclass(frozen=True, slots=True)
class InjectorPace:
    """Seconds. `gap_s`: between two faults, at least and at most; `recover_s`: from a fault to its
    end, longer is a hang; `begin_s`: for the run's first update.
    """

    tick_s: float = 0.2
    gap_s: tuple[float, float] = (0.5, 5.0)
    recover_s: float = 180.0
    begin_s: float = 240.0


@dataclass(slots=True)
class ActiveFault:
    """A fault that was done. Times are seconds: `begun` monotonic, `healthy_at` the database's."""

    fault: Fault
    course: Course
    begun: float
    healthy_at: float | None = None
    recovery_s: float | None = None
    outage_s: float = 0.0
    ended_at: float | None = None  # monotonic: it is over, or was given up as a hang

    @property
    def over(self) -> bool:
        return self.ended_at is not None

    @property
    def name(self) -> str:
        return f"{self.fault.kind} {self.fault.target}"

    @property
    def target(self) -> str:
        return self.fault.target


@dataclass(slots=True)
class FaultInjector:
    """`tell`: called with one line for each fault and each recovery."""

    observer: RunObserver
    random: random.Random
    faults: Sequence[Fault]
    patience_s: float
    tell: Callable[[str], None]
    pace: InjectorPace = InjectorPace()
    active_faults: list[ActiveFault] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    costs: FaultCosts = field(default_factory=FaultCosts)
    _moved: object = None
    _moved_at: float = field(default_factory=time.monotonic)
    _next_at: float = 0.0
    _due: Fault | None = None

    def begin(self) -> None:
        """Wait for the run's first update: there is nothing to break before."""
        deadline = time.monotonic() + self.pace.begin_s
        while self.observer.seen is None or self.observer.seen.version < 1:
            self._stand()
            if time.monotonic() > deadline:
                self.hangs.append(f"no update within {self.pace.begin_s:.0f} s of the beginning")
                return
            time.sleep(self.pace.tick_s)
            self.observer.look()

    def inject(self, kills: int) -> None:
        """`kills` faults, all of them over at the end."""
        while len(self.active_faults) < kills or not all(
            active.over for active in self.active_faults
        ):
            time.sleep(self.pace.tick_s)
            self.observer.look()
            self._stand()
            for active in self.active_faults:
                if not active.over:
                    self._advance(active)
            if len(self.active_faults) < kills and time.monotonic() >= self._next_at:
                self._break()
            self.watch()

    def watch(self) -> None:
        """Notice where nobody has done anything for too long while nothing is broken."""
        seen, at = self.observer.seen, time.monotonic()
        self.costs.look(seen, self.active_faults, at)
        broken = any(not active.over for active in self.active_faults)
        if broken or seen is None or seen.movement != self._moved:
            self._moved, self._moved_at = seen.movement if seen else None, at
        elif at - self._moved_at > self.patience_s:
            self.hangs.append(f"no progress for {self.patience_s:.0f} s")
            self.tell(self.hangs[-1])
            self._moved_at = at

    def _stand(self) -> None:
        """A supervisor that left by itself is a hang: somebody has to come and start it again."""
        alone = any(
            active.fault.alone and active.healthy_at is None for active in self.active_faults
        )
        if alone or (code := self.observer.cluster.exit_code()) is None:
            return
        self.hangs.append(
            f"the run stopped by itself ({code}): {self.observer.cluster.last_words()}"
        )
        self.tell(self.hangs[-1])
        self.observer.cluster.up()

    def _break(self) -> None:
        """Draw a fault, and do it as soon as there is room for it."""
        open_faults = [active for active in self.active_faults if not active.over]
        self._due = self._due or self._draw({active.fault.target for active in open_faults})
        fault, alone = self._due, any(active.fault.alone for active in open_faults)
        if fault is None or alone or len(open_faults) >= (1 if fault.alone else AT_ONCE):
            return
        if self.observer.seen is None or (fault.name and not self.observer.is_healthy(fault.name)):
            return
        self._due = None
        course = fault.course(self.observer, self.random)
        self.active_faults.append(ActiveFault(fault, course, time.monotonic()))
        self.tell(f"{len(self.active_faults)}. {fault.kind} {fault.target}")
        self._next_at = time.monotonic() + self.random.uniform(*self.pace.gap_s)

    def _draw(self, busy: set[str]) -> Fault | None:
        """One of the faults, by their weights, of a target that is not broken now."""
        free = [fault for fault in self.faults if fault.target not in busy]
        if not free:
            return None
        return self.random.choices(free, [fault.weight for fault in free])[0]

    def _give_up(self, active: ActiveFault) -> None:
        """It is a hang."""
        active.ended_at = time.monotonic()
        active.course.close()
        stage = "works again" if active.healthy_at else "answers again"
        within = f"within {self.pace.recover_s:.0f} s"
        self.hangs.append(f"{active.name}: {active.fault.role} never {stage} {within}")
        self.tell(self.hangs[-1])

    def _advance(self, active: ActiveFault) -> None:
        """One step of a fault's course; then the wait for its role's unit of work."""
        fault, seen = active.fault, self.observer.seen
        late = time.monotonic() - active.begun > self.pace.recover_s + fault.lasts_s
        if active.healthy_at is None and not late:
            try:
                next(active.course)
            except StopIteration:
                active.healthy_at = seen.clock if seen else None
            return
        worked_at = None
        if active.healthy_at is not None:
            worked_at = self.observer.first_work_at(fault.role, fault.name, active.healthy_at)
        if worked_at is None or active.healthy_at is None:
            if late:
                self._give_up(active)
            return
        active.recovery_s = worked_at - active.healthy_at
        active.ended_at = time.monotonic()
        active.outage_s = active.ended_at - active.begun
        self.tell(
            f"   {fault.kind} {fault.target}: works {active.recovery_s:.1f} s after it answers, "
            f"{active.outage_s:.1f} s after the fault"
        )
