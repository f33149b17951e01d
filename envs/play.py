"""Plays episodes in this process: an agent and an environment take turns.

    start() ─▶ messages ─▶ agent ─▶ act ─▶ call() ─▶ outcome ─▶ messages ─▶ … until one of them ends

Policies play in `workers/episode.py`, which records their tokens.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from agentrl.envs.contract import Environment, Expert, Item, Message, Outcome, TaskSource, ToolCall
from agentrl.envs.outcome_check import check_outcome

Act = Sequence[ToolCall] | str
Agent = Callable[[Sequence[Message]], Act | None]
"""Returns the next turn, given the messages since its last one; None ends the episode."""


class Turn(NamedTuple):
    """One turn: what the agent did, and the environment's answer."""

    act: Act
    outcome: Outcome


def take_turns(
    environment: Environment, first: Sequence[Message], agent: Agent, most: int
) -> Iterator[Turn]:
    """Yield the turns until the environment is done or the agent ends, at most `most`.

    `first`: the messages with which the environment started. Raises what the environment raises,
    and EnvironmentFailure for a malformed outcome.
    """
    messages = first
    for _ in range(most):
        act = agent(messages)
        if act is None:
            return
        outcome = check_outcome(environment.call(act))
        yield Turn(act, outcome)
        if outcome.done:
            return
        messages = outcome.messages


def acts_of(expert: Expert) -> Agent:
    """Return the agent that does what the expert says."""

    def agent(messages: Sequence[Message]) -> Act:
        said = expert.act(messages)
        return said if isinstance(said, str) else [said]

    return agent


def outcome_of(first: Sequence[Message], turns: Sequence[Turn]) -> Outcome:
    """Return the last outcome with the episode's reward, the sum over its turns."""
    if not turns:
        return Outcome(tuple(first))
    return replace(turns[-1].outcome, reward=math.fsum(turn.outcome.reward for turn in turns))


def play(source: TaskSource, item: Item, expert: Expert) -> Outcome:
    """Play an expert's episode to its end or last turn; after the last turn it is not `done`.

    Raises EnvironmentFailure, ItemError.
    """
    with closing(source.make(item)) as environment:
        first = environment.start().messages
        turns = list(take_turns(environment, first, acts_of(expert), source.max_turns))
    return outcome_of(first, turns)
