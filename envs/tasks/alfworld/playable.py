"""The playable part of an episode: a published ALFWorld game, or a generated household."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.envs.contract import Item
from agentrl.envs.tasks import options
from agentrl.envs.tasks.alfworld.household import Household
from agentrl.envs.tasks.alfworld.problem import AlfworldProblem, read_scene
from agentrl.envs.tasks.alfworld.published.game import NOTHING_HAPPENS, Play, read_setting
from agentrl.envs.tasks.alfworld.published.games import PackedGame
from agentrl.envs.tasks.alfworld.published.pddl import MalformedPddl
from agentrl.envs.tasks.alfworld.wording import NOTHING_HAPPENED, notice, welcome
from agentrl.envs.tasks.options import Style


class PlayableGame(Protocol):
    """A game in play. `nothing`: the reply to an action that resembles no admissible one."""

    nothing: str

    @property
    def won(self) -> bool: ...

    @property
    def progress(self) -> float | None:
        """Return which share of the task is done, 0 to 1; None: unknown."""

    def welcome(self) -> str:
        """Return the task and the first observation."""

    def admissible(self) -> Sequence[str]:
        """Return the admissible actions."""

    def act(self, action: str) -> str:
        """Apply an admissible action and return the observation."""


class ReleaseGame:
    """A published game with its own rules. Raises EnvironmentFailure for missing words."""

    nothing = NOTHING_HAPPENS

    def __init__(self, play: Play) -> None:
        self._play = play

    @property
    def won(self) -> bool:
        return self._play.won

    @property
    def progress(self) -> float | None:
        return self._play.progress

    def welcome(self) -> str:
        with _game_errors():
            _, *paragraphs = self._play.intro().split("\n\n")
        return "Here is your task. " + "\n".join(paragraphs)

    def admissible(self) -> Sequence[str]:
        return list(self._play.commands)

    def act(self, action: str) -> str:
        with _game_errors():
            return self._play.do(action)


class GeneratedGame:
    """A generated household, worded in the requested style."""

    nothing = NOTHING_HAPPENED

    def __init__(self, scene: AlfworldProblem, style: Style) -> None:
        self._household = Household(scene)
        self._style = style

    @property
    def won(self) -> bool:
        return self._household.won

    @property
    def progress(self) -> float:
        return self._household.progress()

    def welcome(self) -> str:
        return welcome(self._household.scene, self._style)

    def admissible(self) -> Sequence[str]:
        return list(self._household.admissible())

    def act(self, action: str) -> str:
        command = self._household.admissible()[action]
        self._household.act(command)
        return notice(command, self._household, self._style)


@contextmanager
def _game_errors() -> Iterator[None]:
    try:
        yield
    except (MalformedPddl, RecursionError) as error:
        raise EnvironmentFailure(f"alfworld: a game's grammar: {error}") from error


def is_published(item: Item) -> bool:
    """Return whether the item is a published game, not a generated household."""
    return "problem" in item.content


def open_game(item: Item, style: Style) -> PlayableGame:
    """Start an item's game. Raises ItemError."""
    if is_published(item):
        return ReleaseGame(play_game(item))
    return GeneratedGame(read_scene(item), style)


def play_game(item: Item) -> Play:
    """Start a published game. Raises ItemError for malformed texts."""
    try:
        return Play(read_setting(*options.read(item, PackedGame).texts()))
    except (MalformedPddl, ValueError, RecursionError) as error:
        raise ItemError(f"item {item.item_id}: {error}") from error
