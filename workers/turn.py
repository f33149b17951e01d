"""Passes a policy's turn to the environment."""

import dataclasses
from bisect import bisect_left
from collections.abc import Sequence

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.logging import get_logger
from agentrl.core.types import TRAINABLE
from agentrl.envs.contract import Environment, Outcome, ToolCall
from agentrl.envs.outcome_check import check_outcome
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style, parse, without_thoughts
from agentrl.workers.policies.client import Completion

log = get_logger()


def apply_turn(
    token_ids: Sequence[int], environment: Environment, template: ChatTemplate, style: Style
) -> tuple[list[ToolCall] | str, Outcome]:
    """Apply the calls of a turn, or its text if it has none, to the environment.

    Raises what the environment raises, and EnvironmentFailure for a malformed outcome.
    """
    ended = bool(token_ids) and token_ids[-1] in template.stop_ids
    text = template.decode(token_ids[:-1] if ended else token_ids)
    tools = environment.tools
    calls = parse(text, tools, style) if tools else without_thoughts(text)
    return calls, check_outcome(environment.call(calls))


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


def require_trainable(outcome: Outcome) -> None:
    """Raise EnvironmentFailure for an end that the agent did not cause."""
    if outcome.status not in TRAINABLE:
        raise EnvironmentFailure(f"the environment ended as {outcome.status}")


def close_environment(environment: Environment) -> None:
    """Close the environment. A failure is only logged, because the attempt has ended."""
    try:
        environment.close()
    except Exception as error:  # an environment is other people's code
        log.warning("Environment not closed", error=f"{type(error).__name__}: {error}")
