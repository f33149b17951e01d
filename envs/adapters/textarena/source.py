"""Single-player games of TextArena as tasks: an item is a seed of `reset`, a turn is a move.

textarena:ID ─▶ reset(seed) ─▶ what the game says ─▶ act(action) ─▶ step ─▶ what is new ─▶ …
"""

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import msgspec
import textarena
from textarena.envs.registration import ENV_REGISTRY

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs.contract import (
    Environment,
    Expert,
    Item,
    Message,
    Observation,
    Outcome,
    Recovery,
    ToolCall,
    shortened,
    strings,
)
from agentrl.envs.tasks import options
from agentrl.envs.tasks.generated import SPLITS, seed_items

MAX_TURNS = 50
RAW = "-raw"  # the ending of a game's name without wrappers: only what is new since the last move
ACT = strings("act", "Make a move, in the form that the game asks for.", "action")

_drawing = threading.Lock()  # games draw from the one generator of the module `random`


class TextArenaOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options. `config`: arguments of `textarena.make`."""

    seed: int = 0
    items: options.Count = 1000
    test_items: options.Count = 200
    prompt: str = ""
    max_turns: options.Count = MAX_TURNS
    config: dict[str, Any] = {}


class Game(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item's content."""

    seed: int


class TextArenaEnvironment:
    """One game of one player."""

    tools = (ACT,)

    def __init__(self, game: Any, item: Item, prompt: str, max_turns: int) -> None:
        self._game, self._task, self._prompt = game, item.task, prompt
        self._left = max_turns
        seed = options.read(item.item_id, Game, item.content).seed
        self._random = random.Random(seed)
        self._seed = seed

    def start(self) -> Observation:
        """Raises EnvironmentFailure."""
        with self._playing("reset"):
            self._game.reset(num_players=1, seed=self._seed)
            told = self._told()
        return Observation((Message("system", self._prompt), Message("user", told)))

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        """A text without a call is a move, too. Raises EnvironmentFailure."""
        self._left -= 1
        if isinstance(calls, str) or not calls:
            answer, done = self._move(calls if isinstance(calls, str) else "")
            answers = [Message("user", answer)]
        else:
            answers, done = [], False
            for call in calls:
                answer, done = self._called(call)
                answers.append(Message("tool", answer, call.name))
                if done:
                    break
        if done:
            return self._end()
        if self._left <= 0:
            return Outcome((), done=True, status=Status.TASK_LIMIT)
        return Outcome(tuple(answers))

    def close(self) -> None: ...

    def _called(self, call: ToolCall) -> tuple[str, bool]:
        if call.error or call.name != ACT.name:
            return call.error or f"There is no tool {shortened(call.name)}; call act.", False
        return self._move(str(call.arguments.get("action", "")))

    def _move(self, action: str) -> tuple[str, bool]:
        with self._playing("step"):
            done, _ = self._game.step(action)
            return ("" if done else self._told()), bool(done)

    def _told(self) -> str:
        """What the game said since the last move, without the move itself."""
        player, said = self._game.get_observation()
        if isinstance(said, str):
            return said
        return "\n".join(text for sender, text, _ in said if sender != player)

    def _end(self) -> Outcome:
        with self._playing("close"):
            rewards, known = self._game.close()
        reward = float(rewards[0])
        foul = bool(known[0].get("invalid_move"))
        status = Status.INVALID_ACTION if foul else Status.COMPLETED
        return Outcome((), done=True, status=status, reward=reward, score=reward)

    @contextmanager
    def _playing(self, what: str) -> Iterator[None]:
        """With the game's own state of the generator that all games share."""
        with _drawing:
            outside = random.getstate()
            random.setstate(self._random.getstate())
            try:
                yield
            except Exception as error:  # other people's code
                raise EnvironmentFailure(f"{self._task}: {what}: {error}") from error
            finally:
                self._random.setstate(random.getstate())
                random.setstate(outside)


class TextArenaSource:
    """The items of one game: seeds of its `reset`."""

    splits = SPLITS
    recovery: Recovery = "replayable"

    def __init__(self, task: str, argument: str, given: Mapping[str, Any]) -> None:
        """Raises ItemError for a game or option that is not there, and for games of several."""
        self.name, self._id = task, argument
        self._options = options.parse(task, TextArenaOptions, given)
        self.max_turns: int = self._options.max_turns
        if argument not in ENV_REGISTRY:
            near = get_close_matches(argument, ENV_REGISTRY, n=3)
            hint = f"similar names: {', '.join(near)}" if near else "see TextArena's list of games"
            raise ItemError(f"{task}: textarena has no game {argument}", hint=hint)
        try:
            self.make(Item(task, "0", {"seed": 0})).start()
        except EnvironmentFailure as error:
            text = f"{task}: textarena:{argument} cannot be played by one player: {error}"
            raise ItemError(text) from error

    def items(self, split: str) -> Sequence[Item]:
        """Raises ItemError."""
        wanted = self._options.items if split == "train" else self._options.test_items
        return seed_items(self.name, split, wanted, f"textarena {self._options.seed}")

    def make(self, item: Item) -> Environment:
        """Raises ItemError."""
        raw = self._id + RAW
        try:
            game = textarena.make(raw if raw in ENV_REGISTRY else self._id, **self._options.config)
        except LookupError as error:  # nltk has not been given its words
            why = str(error).strip(" *\n").partition("\n")[0]
            hint = "python -m nltk.downloader words averaged_perceptron_tagger_eng"
            raise ItemError(f"{self.name}: textarena:{self._id}: {why}", hint=hint) from error
        except (ImportError, TypeError, ValueError, AssertionError) as error:
            raise ItemError(f"{self.name}: textarena:{self._id}: {error}") from error
        prompt = self._options.prompt or f"You play {self._id}. Call act with your move."
        return TextArenaEnvironment(game, item, prompt, self.max_turns)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:  # noqa: ARG002
        raise ItemError(f"item {item.item_id}: TextArena has no demonstrator of {self._id}")
