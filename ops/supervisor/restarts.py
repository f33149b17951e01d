"""Decides when a dead process is restarted, and when restarting is hopeless."""

from collections.abc import Sequence
from dataclasses import dataclass

MEND = 2  # exit code of a clear error, which no restart mends where the process never stood
REPLACED = 3  # exit code of one that another process of the run has replaced: no restart, ever
AWAY = 69  # exit code of one that waits for a service (EX_UNAVAILABLE): its deaths do not count


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. A process that lived `steady_s` has stood.

    `give_up_s`: of one that has stood: of deaths without progress, before it is given up; it may
    as well have lived so long.
    """

    back_off_s: Sequence[float] = (0.5, 1.0, 2.0, 5.0, 10.0)
    steady_s: float = 15.0
    give_up_s: float = 600.0


@dataclass(slots=True)
class Deaths:
    """Those of one process. `count`: in a row, without progress between them; `since`: the first.

    `reached`: how far the run was at the last one.
    """

    count: int = 0
    since: float = 0.0
    stood: bool = False
    reached: int = -1

    def add(self, pace: Pace, now: float, lived_s: float, reached: int | None) -> None:
        """One more, at `now`. `reached`: how far the run is, which never falls; None: unknown."""
        stood = lived_s > pace.steady_s
        self.stood = self.stood or stood
        if reached is None or (stood and reached > self.reached) or lived_s > pace.give_up_s:
            self.count = 0
        if self.count == 0:
            self.since = now
        self.count += 1
        self.reached = max(self.reached, reached or 0)

    def pause_s(self, pace: Pace, lived_s: float) -> float:
        """Return the pause before the next start: starts are one `back_off_s` apart."""
        apart_s = pace.back_off_s[min(self.count, len(pace.back_off_s)) - 1]
        return max(pace.back_off_s[0], apart_s - lived_s)

    def are_hopeless(self, pace: Pace, now: float) -> bool:
        """More starts would not help: too many deaths without progress, of one that stood for
        `give_up_s`.
        """
        lasting = not self.stood or now - self.since > pace.give_up_s
        return self.count > len(pace.back_off_s) and lasting
