"""Games of TextArena as tasks: an item is a seed of `reset`, a turn is a move.

textarena:ID ─▶ reset(seed) ─▶ what the game says ─▶ act(action) ─▶ step ─▶ what is new ─▶ …
In a game of two, the opponent's moves come between the agent's.
"""

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Literal

import msgspec
import textarena
from textarena.envs.registration import ENV_REGISTRY

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs.adapters.steps import Answer, StepEnvironment
from agentrl.envs.adapters.textarena.opponent import Conversation, Endpoint, Move, load_opponent
from agentrl.envs.contract import (
    Expert,
    Item,
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
    """Options. `config`: arguments of `textarena.make`. `opponent`: of a game of two, a function or
    a model. `seat`: the agent's; `any`: the item's seed draws it.
    """

    seed: int = 0
    items: options.Count = 1000
    test_items: options.Count = 200
    prompt: str = ""
    max_turns: options.Count = MAX_TURNS
    config: dict[str, Any] = {}
    opponent: str | Endpoint = ""
    seat: Literal["any", "first", "second"] = "any"


class Game(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item's content."""

    seed: int


class TextArenaEnvironment(StepEnvironment):
    """One game, of one player or against an opponent. A text without a call is a move, too."""

    tools = (ACT,)

    def __init__(
        self, game: Any, item: Item, settings: TextArenaOptions, opponent: Move | None
    ) -> None:
        super().__init__(settings.max_turns)
        self._game, self._task, self._prompt = game, item.task, settings.prompt
        self._seed = options.read(item, Game).seed
        self._random = random.Random(self._seed)
        self._opponent = opponent
        self._luck = random.Random(f"opponent {self._seed}")
        self._seat = _seat(settings, self._luck) if opponent else 0
        self._conversation: Conversation = []  # by the opponent

    def reset(self) -> None:
        """Raises EnvironmentFailure."""
        with self._playing("reset"):
            self._game.reset(num_players=2 if self._opponent else 1, seed=self._seed)

    def start(self) -> Observation:
        """Raises EnvironmentFailure, also where the game is over before the agent's turn."""
        self.reset()
        text = self._await_turn()
        if text is None:
            raise EnvironmentFailure(f"{self._task}: the opponent ended the game at once")
        return Observation.of(self._prompt, text)

    def close(self) -> None: ...

    def _answer_text(self, text: str) -> Answer:
        """Move."""
        answer = None if self._step(text) else self._await_turn()
        return ("", Status.COMPLETED) if answer is None else (answer, None)

    def _answer_call(self, call: ToolCall) -> Answer:
        if call.error or call.name != ACT.name:
            return call.error or f"There is no tool {shortened(call.name)}; call act.", None
        return self._answer_text(str(call.arguments.get("action", "")))

    def _step(self, action: str) -> bool:
        with self._playing("step"):
            done, _ = self._game.step(action)
        return bool(done)

    def _await_turn(self) -> str | None:
        """Let the opponent move until it is the agent's turn; None: the game is over."""
        while True:
            with self._playing("observe"):
                player, text = self._observe()
            if self._opponent is None or player == self._seat:
                return text
            self._conversation.append({"role": "user", "content": text})
            action = self._opponent(self._conversation, self._luck)
            self._conversation.append({"role": "assistant", "content": action})
            if self._step(action):
                return None

    def _observe(self) -> tuple[int, str]:
        """Whose turn it is, and what the game told that player since its last move."""
        player, observation = self._game.get_observation()
        if isinstance(observation, str):
            return player, observation
        return player, "\n".join(text for sender, text, _ in observation if sender != player)

    def _end(self, status: Status) -> Outcome:
        if status == Status.TASK_LIMIT:
            return Outcome((), done=True, status=status)
        with self._playing("close"):
            rewards, known = self._game.close()
        reward = float(rewards[self._seat])
        fouls = {player: bool(each.get("invalid_move")) for player, each in known.items()}
        status = Status.INVALID_ACTION if fouls[self._seat] else status
        metrics = {"opponent_invalid": float(fouls[1 - self._seat])} if self._opponent else {}
        return Outcome((), done=True, status=status, reward=reward, score=reward, metrics=metrics)

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

    def __init__(self, task: str, argument: str, raw_options: Mapping[str, Any]) -> None:
        """Raises ItemError for a game, option or opponent that is not there, ConfigError."""
        self.name, self._id = task, argument
        settings = options.parse(task, TextArenaOptions, raw_options)
        prompt = settings.prompt or f"You play {argument}. Call act with your move."
        self._options = msgspec.structs.replace(settings, prompt=prompt)
        self.max_turns: int = settings.max_turns
        self._opponent = load_opponent(task, settings.opponent) if settings.opponent else None
        self.recovery: Recovery = (
            "restart_only" if isinstance(settings.opponent, Endpoint) else "replayable"
        )
        if argument not in ENV_REGISTRY:
            near = get_close_matches(argument, ENV_REGISTRY, n=3)
            hint = f"similar names: {', '.join(near)}" if near else "see TextArena's list of games"
            raise ItemError(f"{task}: textarena has no game {argument}", hint=hint)
        try:
            self.make(Item(task, "0", {"seed": 0})).reset()
        except EnvironmentFailure as error:
            players = "two players" if self._opponent else "one player"
            text = f"{task}: textarena:{argument} cannot be played by {players}: {error}"
            hint = "" if self._opponent else "give a game of two an opponent: the option opponent"
            raise ItemError(text, hint=hint) from error

    def items(self, split: str) -> Sequence[Item]:
        count = self._options.items if split == "train" else self._options.test_items
        return seed_items(self.name, split, count, f"textarena {self._options.seed}")

    def make(self, item: Item) -> TextArenaEnvironment:
        raw = self._id + RAW
        try:
            game = textarena.make(raw if raw in ENV_REGISTRY else self._id, **self._options.config)
        except LookupError as error:  # nltk has not been given its words
            why = str(error).strip(" *\n").partition("\n")[0]
            hint = "python -m nltk.downloader words averaged_perceptron_tagger_eng"
            raise ItemError(f"{self.name}: textarena:{self._id}: {why}", hint=hint) from error
        except (ImportError, TypeError, ValueError, AssertionError) as error:
            raise ItemError(f"{self.name}: textarena:{self._id}: {error}") from error
        return TextArenaEnvironment(game, item, self._options, self._opponent)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:  # noqa: ARG002
        raise ItemError(f"item {item.item_id}: TextArena has no demonstrator of {self._id}")


def _seat(settings: TextArenaOptions, luck: random.Random) -> int:
    return luck.randrange(2) if settings.seat == "any" else ("first", "second").index(settings.seat)
