"""Checks what an environment answers, alike in a worker and on an env server."""

import dataclasses
import sys

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.trajectory import LARGEST, read_number
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
        metrics={
            name: _number(f"metrics[{name!r}]", n, sys.float_info.max)
            for name, n in outcome.metrics.items()
        },
    )


def _number(name: str, value: object, largest: float = LARGEST) -> float:
    """Convert to float. Raises EnvironmentFailure."""
    try:
        return read_number(None if isinstance(value, bool) else value, largest)
    except ValueError:
        raise EnvironmentFailure(
            f"the environment's {name} is {value!r:.60} of type {type(value).__name__}",
            hint=f"return a float up to {largest:.2g} in its Outcome",
        ) from None
