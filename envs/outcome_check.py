"""Checks what an environment answers, alike in a worker and on an env server."""

import dataclasses
import math
from numbers import Real

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.contract import Outcome


def check_outcome(outcome: Outcome) -> Outcome:
    """Return the outcome with all numbers as floats.

    Raises EnvironmentFailure if a value is not a number: the body is hashed, and an int or a bool
    would be decoded as another value. And if the episode goes on without a message: the policy
    would continue a turn that it has closed.
    """
    if not (outcome.done or outcome.messages):
        raise EnvironmentFailure(
            "the environment gave no message and is not done",
            hint="return a message, or done=True, in its Outcome",
        )
    rewards = outcome.branch_rewards
    return dataclasses.replace(
        outcome,
        branch_rewards={turn: _number(f"branch_rewards[{turn}]", n) for turn, n in rewards.items()},
        reward=_number("reward", outcome.reward),
        score=_number("score", outcome.score),
        metrics={name: _number(f"metrics[{name!r}]", n) for name, n in outcome.metrics.items()},
    )


def _number(name: str, value: object) -> float:
    """Convert to float. Raises EnvironmentFailure."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            if math.isfinite(number := float(value)):
                return number
        except OverflowError:
            pass
    raise EnvironmentFailure(
        f"the environment's {name} is {value!r:.60} of type {type(value).__name__}",
        hint="return a finite float in its Outcome",
    )
