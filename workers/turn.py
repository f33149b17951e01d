"""Passes a policy's turn to the environment and checks the outcome."""

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Sequence
from numbers import Real

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.logging import get_logger
from agentrl.core.types import TRAINABLE
from agentrl.envs.contract import Environment, Outcome, ToolCall
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style, parse, without_thoughts
from agentrl.workers.policies.client import Completion

log = get_logger()


def apply_turn(
    token_ids: Sequence[int], environment: Environment, template: ChatTemplate, style: Style
) -> tuple[list[ToolCall] | str, Outcome]:
    """Apply the calls of a turn, or its text if it has none, to the environment."""
    ended = bool(token_ids) and token_ids[-1] in template.stop_ids
    text = template.decode(token_ids[:-1] if ended else token_ids)
    tools = environment.tools
    calls = parse(text, tools, style) if tools else without_thoughts(text)
    return calls, environment.call(calls)


def end_at_stop(
    completion: Completion, before: Sequence[int], stop: Sequence[str], template: ChatTemplate
) -> Completion:
    """Return a completion up to the token that completes the first of the stop texts.

    The tokens after it are as if they had never been sampled, so the others keep their
    log-probabilities. `before`: tokens of the turn before it.
    """

    def stops(count: int) -> bool:
        text = template.decode([*before, *completion.token_ids[:count]])
        return any(each in text for each in stop)

    whole = len(completion.token_ids)
    if not stop or not stops(whole):
        return completion
    count = bisect_left(range(1, whole), True, key=stops) + 1
    return dataclasses.replace(
        completion,
        token_ids=completion.token_ids[:count],
        logprobs=completion.logprobs[:count],
        finish_reason="stop",
    )


def check_outcome(outcome: Outcome) -> Outcome:
    """Return the outcome with all numbers as floats.

    Raises EnvironmentFailure if the agent did not cause the end, or if a value is not a number: the
    body is hashed, and an int or a bool would be decoded as another value.
    """
    if outcome.status not in TRAINABLE:
        raise EnvironmentFailure(f"the environment ended as {outcome.status}")
    rewards = outcome.branch_rewards
    return dataclasses.replace(
        outcome,
        branch_rewards={turn: _number(f"branch_rewards[{turn}]", n) for turn, n in rewards.items()},
        reward=check_reward(outcome),
        score=_number("score", outcome.score),
        metrics={name: _number(f"metrics[{name!r}]", n) for name, n in outcome.metrics.items()},
    )


def check_reward(outcome: Outcome) -> float:
    """Return the reward of a turn as a float. Raises EnvironmentFailure if it is not a number."""
    return _number("reward", outcome.reward)


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


def close_environment(environment: Environment) -> None:
    """Close the environment. A failure is only logged, because the attempt has ended."""
    try:
        environment.close()
    except Exception as error:  # an environment is other people's code
        log.warning("Environment not closed", error=f"{type(error).__name__}: {error}")
