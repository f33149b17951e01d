"""Plays many episodes of one policy in this process, to measure the success of a warm start.

Each round samples the next turn of every open episode in one batch.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.types import SOLVED
from agentrl.envs.contract import Environment, Item, TaskSource
from agentrl.serving.engine_api import Completion, Request
from agentrl.workers.conversation.branches import Branches
from agentrl.workers.conversation.conversation import Conversation
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style
from agentrl.workers.turn import apply_turn

OPEN_EPISODES = 128


class Submits(Protocol):
    """The part of an engine that playing uses."""

    def submit(self, request: Request) -> Future[Completion]: ...


@dataclass(frozen=True, slots=True)
class Player:
    """A policy. `sampling`: its temperature, and the limits of tokens that a run would set it."""

    engine: Submits
    policy: str
    template: ChatTemplate
    style: Style
    sampling: Sampling


def scores(
    player: Player, source: TaskSource, items: Sequence[Item], max_turns: int | None, seed: int
) -> list[float]:
    """Return one episode's score per item, in order; 0 if turns or tokens ran out.

    `max_turns`: None: the task's own.
    """
    won = [0.0] * len(items)
    turns = max_turns or source.max_turns
    waiting = (
        (n, _Episode(player, source.make(item), turns, str(n))) for n, item in enumerate(items)
    )
    open_episodes = dict(islice(waiting, OPEN_EPISODES))
    try:
        while open_episodes:
            asked = {n: episode.ask(seed + n) for n, episode in open_episodes.items()}
            for n, future in asked.items():
                if open_episodes[n].answer(future.result()):
                    won[n] = open_episodes.pop(n).score
            open_episodes.update(islice(waiting, OPEN_EPISODES - len(open_episodes)))
    finally:
        for episode in open_episodes.values():
            episode.close()
    return won


class _Episode:
    """The state of one episode between turns."""

    def __init__(self, player: Player, environment: Environment, turns: int, session: str) -> None:
        self._player, self._session = player, session
        self._environment = environment
        self._turns_left = turns
        first = self._environment.start().messages
        self._branches = Branches(
            Conversation, player.template, player.style, self._environment.tools, first
        )
        self.score = 0.0

    def _room(self) -> int:
        """Return how many tokens may be sampled in the next turn, as `EpisodeLoop` counts them."""
        sampling = self._player.sampling
        return min(sampling.max_step_tokens, sampling.max_tokens - len(self._branches.current))

    def ask(self, seed: int) -> Future[Completion]:
        player, prompt = self._player, self._branches.current.prompt()
        return player.engine.submit(
            Request(
                policy=player.policy,
                prompt=prompt,
                max_tokens=max(self._room(), 1),  # also where the first prompt fills the episode
                temperature=player.sampling.temperature,
                stop_ids=player.template.stop_ids,
                seed=seed * 1000 + len(prompt),
                session=self._session,
            )
        )

    def answer(self, completion: Completion) -> bool:
        """Apply a turn; return whether the episode is over, after closing its environment."""
        player = self._player
        self._branches.current.append_sampled(completion.token_ids, completion.logprobs, 0)
        tokens, environment = completion.token_ids, self._environment
        _, outcome = apply_turn(tokens, environment, player.template, player.style)
        self._branches.end_turn()
        self._branches.observe(outcome, environment.tools)
        self._turns_left -= 1
        if outcome.done:
            self.score = outcome.score
        if outcome.done or self._room() <= 0 or not self._turns_left:
            self.close()
            return True
        return False

    def close(self) -> None:
        self._environment.close()


def success(outcomes: Sequence[float]) -> float:
    """Return the share of successful episodes."""
    return sum(score >= SOLVED for score in outcomes) / len(outcomes)


def pass_at(outcomes: Sequence[float], attempts: int) -> float:
    """Return the share of items solved at least once; each item has `attempts` adjacent scores."""
    groups = (outcomes[n : n + attempts] for n in range(0, len(outcomes), attempts))
    return success([max(group) for group in groups])
