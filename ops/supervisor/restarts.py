"""Decides when a dead process is restarted, and when restarting is hopeless."""

from collections.abc import Sequence
from dataclasses import dataclass

NEEDS_A_PERSON = 2  # exit code of a clear error; a restart helps only one that was steady
REPLACED = 3  # exit code of one that another process of the run has replaced: no restart, ever
AWAY = 69  # exit code of one that waits for a service (EX_UNAVAILABLE): its deaths do not count


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait between restarts, in seconds.

    `back_off_s`: from one start to the next, by the number of deaths in a row. `steady_s`: a
    process that lived this long was steady. `give_up_s`: how long a process that was once steady
    may keep dying without progress. One that lives this long starts a new row of deaths.
    """

    back_off_s: Sequence[float] = (0.5, 1.0, 2.0, 5.0, 10.0)
    steady_s: float = 15.0
    give_up_s: float = 600.0


@dataclass(slots=True)
class Deaths:
    """Deaths of one process. `count`: deaths in a row, without progress of the run between them.

    `since`: time of the first of these. `progress`: progress of the run at the last death.
    """

    count: int = 0
    since: float = 0.0
    was_steady: bool = False
    progress: int = -1

    def add(self, pace: Pace, now: float, lived_s: float, progress: int | None) -> None:
        """Count a death at `now`. `progress`: progress of the run; None: unknown."""
        was_steady = lived_s > pace.steady_s
        self.was_steady = self.was_steady or was_steady
        if (
            progress is None
            or (was_steady and progress > self.progress)
            or lived_s > pace.give_up_s
        ):
            self.count = 0
        if self.count == 0:
            self.since = now
        self.count += 1
        self.progress = max(self.progress, progress or 0)

    def pause_s(self, pace: Pace, lived_s: float) -> float:
        """Return the pause before the next start: starts are one `back_off_s` apart."""
        apart_s = pace.back_off_s[min(self.count, len(pace.back_off_s)) - 1]
        return max(pace.back_off_s[0], apart_s - lived_s)

    def are_hopeless(self, pace: Pace, now: float) -> bool:
        """Return whether restarts would not help: too many deaths in a row without progress.

        A process that was once steady is given `give_up_s` more.
        """
        lasting = not self.was_steady or now - self.since > pace.give_up_s
        return self.count > len(pace.back_off_s) and lasting
