"""Repeats the actions of an episode in an environment made anew and compares its answers."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from agentrl.envs.contract import Expert, Item, Observation, Outcome, TaskSource, Tool
from agentrl.envs.play import Turn, acts_of, take_turns


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """What an environment was told and what it answered. `tools`: before the first turn."""

    tools: tuple[Tool, ...]
    first: Observation
    turns: Sequence[Turn]


def record_episode(source: TaskSource, item: Item, agent: Expert) -> PlayedEpisode:
    """Play an agent's episode to its end or last turn. Raises EnvironmentFailure, ItemError."""
    with closing(source.make(item)) as environment:
        first, tools = environment.start(), environment.tools
        turns = take_turns(environment, first.messages, acts_of(agent), source.max_turns)
        return PlayedEpisode(tools, first, list(turns))


def first_difference(source: TaskSource, item: Item, played: PlayedEpisode) -> str:
    """Repeat the actions and return where the answers first differ; empty: nowhere.

    Raises EnvironmentFailure, ItemError.
    """
    acts = iter([act for act, _ in played.turns])
    with closing(source.make(item)) as environment:
        first = environment.start()
        if first != played.first or environment.tools != played.tools:
            return "another first prompt"
        turns = take_turns(environment, first.messages, lambda _: next(acts), len(played.turns))
        for number, (now, before) in enumerate(zip(turns, played.turns, strict=False), 1):
            if _compared(now.outcome) != _compared(before.outcome):
                return f"another answer to turn {number}"
        return ""


def differing_answers(
    source: TaskSource, items: Sequence[Item], agent: Callable[[Item, int], Expert]
) -> list[str]:
    """Play each item, with its place as the seed, and return where repeating it differs."""
    found = []
    for seed, item in enumerate(items):
        played = record_episode(source, item, agent(item, seed))
        if difference := first_difference(source, item, played):
            found.append(f"{item.item_id}: {difference}")
    return found


def _compared(outcome: Outcome) -> object:
    """Return what of an outcome must be equal; metrics may hold times."""
    return outcome.messages, outcome.done, outcome.status, outcome.reward, outcome.score
