"""Finds demonstrations that are longer than a run samples, and so teach what it cuts off."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from agentrl.core.config.sections.episodes import Sampling
from agentrl.ops.warmstart.cloning_trainer import Lessons


def limit_warnings(phases: Sequence[Lessons], sampling: Sampling) -> Iterator[str]:
    """Yield a line for each task and limit that some of its demonstrations exceed.

    `phases`: the demonstrations of each by task; imported ones belong to no task.
    """
    for task in dict.fromkeys(name for lessons in phases for name in lessons):
        shown = [each for lessons in phases for each in lessons[task]]
        turns = [int(turn_lengths(each.mask).max()) for each in shown]
        episodes = [learned_length(each.mask) for each in shown]
        for key, what, lengths, most in (
            ("max_step_tokens", "a turn of more than", turns, sampling.max_step_tokens),
            ("max_tokens", "more than", episodes, sampling.max_tokens),
        ):
            if longer := sum(length > most for length in lengths):
                yield (
                    f"{task or 'imported episodes'}: {longer / len(lengths):.1%} of the "
                    f"demonstrations have {what} {most:,} tokens, which sampling.{key} cuts off; "
                    f"the longest has {max(lengths):,}"
                )


def turn_lengths(mask: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return the number of tokens of each turn. `mask`: [T], 1 for the turns' tokens."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return edges[1::2] - edges[::2]


def learned_length(mask: NDArray[np.uint8]) -> int:
    """Return the number of tokens up to the end of the last turn. `mask`: as `turn_lengths`."""
    return int(np.flatnonzero(mask)[-1]) + 1
