"""Problems of a dataset of reasoning-gym as items; its own scorer gives the reward.

    reasoning-gym:DATASET ─▶ problems 0, 1, 2, … of the seed ─▶ train and test, by their hash
    the agent's answer ─▶ is_safe ─▶ the dataset's score_answer ─▶ reward = score

An item holds the seed and the number of its problem: the problem is made again where it is played.
"""

import hashlib
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any

import msgspec
import reasoning_gym
from reasoning_gym.factory import DATASETS

from agentrl.core.errors import EnvironmentFailure, ItemError, nearest
from agentrl.envs.adapters.reasoning_gym.safety import is_safe
from agentrl.envs.contract import (
    Environment,
    Expert,
    Item,
    Message,
    Observation,
    Outcome,
    Recovery,
    ToolCall,
    require_split,
    shortened,
    strings,
)
from agentrl.envs.tasks import options
from agentrl.envs.tasks.generated import SPLITS, TEST_SHARE, split_of

DRAWS = 2  # problems drawn at most, for each that the sizes and shares of the splits need
MAX_TURNS = 4  # one answer, and a few mistakes of its form
IDLE_DRAWS = 500  # draws in a row without a new problem, after which there are no more
# Their problems depend on the order of sets of texts, which is another one in every process.
UNORDERED = frozenset(
    {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
)
UNSEEDED = "list_functions"  # draws some numbers without the seed
PROMPT = (
    "Solve the problem. When you are done, call answer with the final answer alone, "
    "in the form that the problem asks for."
)
ANSWER = strings("answer", "Give the final answer; it ends the episode.", "answer")

_drawing = threading.Lock()  # some datasets draw from numpy's one global generator


class ReasoningGymOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options. `config`: the dataset's own parameters, without `seed` and `size`."""

    seed: int = 0
    items: options.Count = 500
    test_items: options.Count = 100
    style: options.Style = "full"
    config: dict[str, Any] = {}


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item's content. `config`: as JSON; `size`: some datasets draw as many problems at once."""

    dataset: str
    config: str
    seed: int
    size: int
    index: int
    question: str
    answer: str
    style: options.Style


class ReasoningGymEnvironment:
    """One problem, which ends with the first answer."""

    tools = (ANSWER,)

    def __init__(self, item: Item) -> None:
        """Raises ItemError for content that is none, EnvironmentFailure for a changed problem."""
        self._task = item.task
        self._problem = options.read(item, Problem)
        known = self._problem
        self._dataset = dataset(known.dataset, known.config, known.seed, known.size)
        self._entry = entry(self._dataset, known.index)
        if self._entry["question"] != known.question:
            raise EnvironmentFailure(
                f"item {item.item_id}: {known.dataset} asks another question here",
                hint="install the same version of reasoning-gym everywhere",
            )

    def start(self) -> Observation:
        system = PROMPT if self._problem.style == "full" else self._task
        return Observation((Message("system", system), Message("user", self._problem.question)))

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if isinstance(calls, str) or not calls:
            return Outcome((Message("user", "Call answer with the final answer."),))
        call = calls[0]
        if call.error or call.name != ANSWER.name:
            why = call.error or f"There is no tool {shortened(call.name)}; call answer."
            return Outcome((Message("tool", why, call.name),))
        score = self._score(str(call.arguments.get("answer", "")))
        return Outcome((), done=True, reward=score, score=score)

    def close(self) -> None: ...

    def _score(self, answer: str) -> float:
        known = answer if answer == self._problem.answer else answer.strip()
        if known != self._problem.answer and not is_safe(self._problem.dataset, known):
            known = ""
        try:
            return float(self._dataset.score_answer(known or None, self._entry))
        except Exception:  # whatever a scorer raises when it cannot read an agent's answer
            return 0.0


class Gold:
    """An Expert that gives the dataset's own answer, or with probability `noise` another one."""

    def __init__(self, answer: str, *, seed: int, noise: float) -> None:
        self._answer, self._luck, self._noise = answer, Random(seed), noise

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        answer = self._answer
        if self._luck.random() < self._noise:
            answer = self._wrong()
        return ToolCall(ANSWER.name, {"answer": answer})

    def _wrong(self) -> str:
        """A digit or a letter of the answer replaced, so that its form is still right."""
        places = [place for place, sign in enumerate(self._answer) if sign.isalnum()]
        if not places:
            return f"{self._answer}?"
        place = self._luck.choice(places)
        others = "0123456789" if self._answer[place].isdigit() else "abcdefghij"
        sign = self._luck.choice([each for each in others if each != self._answer[place]])
        return self._answer[:place] + sign + self._answer[place + 1 :]


class ReasoningGymSource:
    """The items of one dataset."""

    max_turns, splits = MAX_TURNS, SPLITS
    recovery: Recovery = "replayable"

    def __init__(self, task: str, argument: str, raw_options: Mapping[str, Any]) -> None:
        """Raises ItemError for an unknown dataset, option or parameter of the dataset."""
        self.name = task
        self._options = options.parse(task, ReasoningGymOptions, raw_options)
        if argument not in DATASETS:
            raise ItemError(
                f"{task}: reasoning-gym has no dataset {argument}{nearest(argument, DATASETS)}"
            )
        if argument == UNSEEDED:
            text = f"{task}: reasoning-gym:{argument} draws another problem each time it is asked"
            raise ItemError(text, hint="choose another dataset; this one ignores its seed")
        if argument in UNORDERED and sys.flags.hash_randomization:
            text = f"{task}: reasoning-gym:{argument} draws different problems in every process"
            raise ItemError(text, hint="set PYTHONHASHSEED=0 for all processes of the run")
        if reserved := {"seed", "size"} & self._options.config.keys():
            text = f"{task}: option config: {min(reserved)} cannot be set there"
            raise ItemError(text, hint="use the options seed, items and test_items")
        self._name, self._config = argument, json.dumps(self._options.config, sort_keys=True)
        self._seed = Random(f"{argument} {self._options.seed}").getrandbits(31)
        self._counts = {"train": self._options.items, "test": self._options.test_items}
        most = max(
            self._counts["train"] * TEST_SHARE // (TEST_SHARE - 1),
            self._counts["test"] * TEST_SHARE,
        )
        self._size = DRAWS * most + IDLE_DRAWS
        self._items: dict[str, tuple[Item, ...]] = {}
        self._dataset()

    def items(self, split: str) -> Sequence[Item]:
        """Raises ItemError, also where the dataset has fewer problems than asked for."""
        require_split(self.name, split, SPLITS)
        if not self._items:
            self._items = self._drawn()
        items, count = self._items[split], self._counts[split]
        if len(items) < count:
            raise ItemError(
                f"{self.name}: split {split} holds {len(items)} items, not {count}",
                hint="lower items and test_items, or enlarge the config",
            )
        return items

    def make(self, item: Item) -> Environment:
        return ReasoningGymEnvironment(item)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        problem = options.read(item, Problem)
        if not problem.answer:
            raise ItemError(f"item {item.item_id}: {problem.dataset} gives no answer of its own")
        return Gold(problem.answer, seed=seed, noise=noise)

    def _dataset(self) -> Any:
        """Raises ItemError."""
        return dataset(self._name, self._config, self._seed, self._size)

    def _drawn(self) -> dict[str, tuple[Item, ...]]:
        """Different problems in the order of their numbers, until both splits are full."""
        problems = self._dataset()
        by_split: dict[str, list[Item]] = {split: [] for split in SPLITS}
        seen: set[str] = set()
        idle = 0
        for index in range(self._size):
            drawn = entry(problems, index)
            answer = drawn["answer"] if isinstance(drawn["answer"], str) else ""
            key = f"{drawn['question']}\n{answer}"
            idle = idle + 1 if key in seen else 0
            split = split_of(key)
            if key not in seen and len(by_split[split]) < self._counts[split]:
                by_split[split].append(self._item(index, drawn["question"], answer))
            seen.add(key)
            full = all(len(by_split[split]) == wanted for split, wanted in self._counts.items())
            if full or idle == IDLE_DRAWS:
                break
        return {split: tuple(items) for split, items in by_split.items()}

    def _item(self, index: int, question: str, answer: str) -> Item:
        problem = Problem(
            dataset=self._name,
            config=self._config,
            seed=self._seed,
            size=self._size,
            index=index,
            question=question,
            answer=answer,
            style=self._options.style,
        )
        digest = hashlib.sha256(f"{question}\n{answer}".encode()).hexdigest()[:12]
        return Item(self.name, f"{index}-{digest}", msgspec.to_builtins(problem))


@lru_cache(maxsize=16)
def dataset(name: str, config: str, seed: int, size: int) -> Any:
    """A dataset with its parameters, which are JSON. Raises ItemError."""
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **json.loads(config))
    except (AssertionError, TypeError, ValueError) as error:
        raise ItemError(f"reasoning-gym:{name}: config: {error}") from error


def entry(problems: Any, index: int) -> Mapping[str, Any]:
    """Problem `index` of a dataset: question, answer and what its scorer needs."""
    with _drawing:
        problem: Mapping[str, Any] = problems[index]
    return problem
