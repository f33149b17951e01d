"""A demonstrator: makes the item's calls, request by request, and says when one is done.

With noise it errs as a learner does: names another thing than the one asked for, leaves a call
out, or says that it is done before it is.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.bfcl.problem import Problem

DONE = "Done."


class BfclExpert:
    """An Expert; `noise`: probability of an error a turn."""

    def __init__(self, problem: Problem, *, seed: int, noise: float) -> None:
        self._random, self._noise = Random(seed), noise
        self._turns: list[ToolCall | None] = []  # None: the request is done
        for request in problem.requests:
            self._turns += [ToolCall(call.name, call.arguments) for call in request.truth]
            self._turns.append(None)
        calls = [turn for turn in self._turns if turn]
        self._words = [
            value for call in calls for value in call.arguments.values() if isinstance(value, str)
        ]

    def act(self, _messages: Sequence[Message]) -> ToolCall | str:
        turn = self._turns.pop(0) if self._turns else None
        if turn is None:
            return DONE
        if self._random.random() < self._noise:
            return self._mistaken(turn)
        return turn

    def _mistaken(self, call: ToolCall) -> ToolCall | str:
        error = self._random.choice(("early", "other", "other", "left out"))
        if error == "early":
            while self._turns and self._turns[0] is not None:
                self._turns.pop(0)
            self._turns[:1] = []
            return DONE
        if error == "left out" and self._turns and self._turns[0] is not None:
            following = self._turns.pop(0)
            return following or DONE
        return ToolCall(
            call.name, {name: self._other(value) for name, value in call.arguments.items()}
        )

    def _other(self, value: Any) -> Any:
        """Another value of the same type."""
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return value + self._random.choice((-1, 1))
        if isinstance(value, str):
            return self._random.choice(
                [word for word in self._words if word != value] or [value + "s"]
            )
        if isinstance(value, list):
            return value[:-1]
        return {} if isinstance(value, Mapping) else value
