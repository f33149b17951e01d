"""The maintenance of an env server: chores that run every second, each by itself."""

import math
import time
from collections.abc import Callable, Sequence

BACK_OFF_S = (1.0, 5.0, 30.0)  # after the first, the second and each further failure in a row


class Maintenance:
    """Calls chores, such as the maintenance of pools; one that fails delays no other."""

    def __init__(
        self, chores: Sequence[Callable[[], None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._chores = chores
        self._clock = clock
        self._failures = [0] * len(chores)
        self._due = [-math.inf] * len(chores)

    def __call__(self) -> None:
        """Call each chore that is due. Raises the first error at the end."""
        errors: list[Exception] = []
        for place, chore in enumerate(self._chores):
            if self._clock() < self._due[place]:
                continue
            try:
                chore()
                self._failures[place] = 0
            except Exception as error:
                pause_s = BACK_OFF_S[min(self._failures[place], len(BACK_OFF_S) - 1)]
                self._failures[place] += 1
                self._due[place] = self._clock() + pause_s
                errors.append(error)
        if errors:
            raise errors[0]
