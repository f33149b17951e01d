"""The stages of an errand: each of its things is taken, treated if it must be, and brought."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrandStages:
    """`count`: of the things to bring. `is_treated`: whether each must be treated first."""

    count: int
    is_treated: bool

    def of_thing(self, *, held: bool, ready: bool, brought: bool) -> int:
        """Return how many stages of a thing are done. `ready`: treated as the errand asks."""
        if brought and ready:
            return 2 + self.is_treated
        return held + (self.is_treated and ready)

    def share(self, stages: Iterable[int]) -> float:
        """Return which share of the errand is done, 0 to 1, given the stages of each thing."""
        best = sorted(stages, reverse=True)[: self.count]
        return sum(best) / (self.count * (2 + self.is_treated))
