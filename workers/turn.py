"""What the environment makes of a policy's turn."""

from collections.abc import Sequence

from core.errors import EnvironmentFailure
from core.types import TRAINABLE
from envs.contract import Environment, Outcome, ToolCall
from workers.template import ChatTemplate
from workers.toolcalls import Style, parse


def act(
    token_ids: Sequence[int], environment: Environment, template: ChatTemplate, style: Style
) -> tuple[list[ToolCall] | str, Outcome]:
    """Read a turn's calls, or its text where it makes none, and apply them."""
    ended = bool(token_ids) and token_ids[-1] in template.stop_ids
    text = template.decode(token_ids[:-1] if ended else token_ids)
    tools = environment.tools
    calls = parse(text, tools, style) if tools else text
    return calls, environment.call(calls)


def of_agent(outcome: Outcome) -> Outcome:
    """The outcome, if the agent brought it about. Raises EnvironmentFailure: no reward."""
    if outcome.status not in TRAINABLE:
        raise EnvironmentFailure(f"the environment ended as {outcome.status}")
    return outcome
