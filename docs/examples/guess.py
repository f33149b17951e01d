"""A task in one file: guess a number; the answers are 'higher' and 'lower'."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from agentrl.envs.contract import Item, Message, Observation, Outcome, ToolCall, strings
from agentrl.envs.tasks import generated, options

SPAN = {"easy": 20, "medium": 100, "hard": 400}  # halving needs at most 5, 7 and 9 turns


class Guess:  # an Environment: one episode
    tools = (strings("guess", "Guess the number.", "number"),)

    def __init__(self, item: Item) -> None:
        self.low, self.high, self.secret = (item.content[key] for key in ("low", "high", "secret"))

    def start(self) -> Observation:
        return Observation((Message("system", "guess"), Message("user", f"{self.low}-{self.high}")))

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if isinstance(calls, str) or not calls:
            return Outcome((Message("user", "Call guess."),))
        number = str(calls[0].arguments.get("number"))
        if calls[0].error or not number.isdecimal() or len(number) > 9:
            return Outcome((Message("tool", calls[0].error or "No number.", "guess"),))
        if int(number) == self.secret:
            return Outcome((), done=True, reward=1.0, score=1.0)
        answer = "higher" if self.secret > int(number) else "lower"
        return Outcome((Message("tool", answer, "guess"),))

    def close(self) -> None: ...


class Halver:  # an Expert: it takes what came since its last turn, and gives the next
    def __init__(self, item: Item, *, seed: int, noise: float = 0.0) -> None:
        self.low, self.high, self.last = item.content["low"], item.content["high"], 0
        self.luck, self.noise = Random(seed), noise

    def act(self, messages: Sequence[Message]) -> ToolCall:
        self.low = self.last + 1 if messages[-1].content == "higher" else self.low
        self.high = self.last - 1 if messages[-1].content == "lower" else self.high
        fair, wild = (self.low + self.high) // 2, self.luck.randint(self.low, self.high)
        self.last = wild if self.luck.random() < self.noise else fair
        return ToolCall("guess", {"number": str(self.last)})


class GuessSource:  # a TaskSource: what the options of `[tasks.guess]` make
    name, max_turns, splits, make, expert = "guess", 9, generated.SPLITS, Guess, Halver

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.options = options.parse("guess", options.Generated, given)
        self.items = generated.Splits("guess", self.options, self.draw).items

    def draw(self, random: Random, _number: int) -> tuple[Mapping[str, Any], str]:
        low, span = random.randint(0, 10_000), SPAN[self.options.difficulty]
        secret = random.randint(low, low + span)
        return {"low": low, "high": low + span, "secret": secret}, f"{low} {secret}"
