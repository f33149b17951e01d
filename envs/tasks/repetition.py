"""Repeats the actions of an episode in an environment made anew and compares its answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.envs.contract import Expert, Item, Observation, Outcome, TaskSource, Tool, ToolCall

Act = Sequence[ToolCall] | str


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """What an environment was told and what it answered."""

    tools: tuple[Tool, ...]
    first: Observation
    turns: Sequence[tuple[Act, Outcome]]


def record_episode(source: TaskSource, item: Item, agent: Expert) -> PlayedEpisode:
    """Play an agent's episode to its end or last turn. Raises EnvironmentFailure, ItemError."""
    environment = source.make(item)
    try:
        first = environment.start()
        messages, turns = first.messages, []
        for _ in range(source.max_turns):
            said = agent.act(messages)
            act: Act = said if isinstance(said, str) else [said]
            outcome = environment.call(act)
            turns.append((act, outcome))
            if outcome.done:
                break
            messages = outcome.messages
        return PlayedEpisode(environment.tools, first, turns)
    finally:
        environment.close()


def first_difference(source: TaskSource, item: Item, played: PlayedEpisode) -> str:
    """Repeat the actions and return where the answers first differ; empty: nowhere.

    Raises EnvironmentFailure, ItemError.
    """
    environment = source.make(item)
    try:
        if environment.start() != played.first or environment.tools != played.tools:
            return "another first prompt"
        for number, (act, before) in enumerate(played.turns, 1):
            if _compared(environment.call(act)) != _compared(before):
                return f"another answer to turn {number}"
        return ""
    finally:
        environment.close()


def _compared(outcome: Outcome) -> object:
    """Return what of an outcome must be equal; metrics may hold times."""
    return outcome.messages, outcome.done, outcome.status, outcome.reward, outcome.score
