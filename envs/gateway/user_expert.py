"""The user's expert: a function that gives the next turn of a program's policy.

(item, messages, fault) ─▶ text, or {"name": …, "arguments": {…}}
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from agentrl.core.errors import ItemError, in_words
from agentrl.envs.contract import Message, ToolCall

ExpertFunction = Callable[[Mapping[str, Any], Sequence[Mapping[str, str]], Random | None], Any]


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any]


class UserExpert:
    """An Expert. `noise`: probability that a turn is requested with a fault."""

    def __init__(
        self, function: ExpertFunction, item: Mapping[str, Any], seed: int, noise: float
    ) -> None:
        self._function = function
        self._item = item
        self._random = Random(seed)
        self._noise = noise

    def act(self, messages: Sequence[Message]) -> ToolCall | str:
        """Return the function's turn. Raises ItemError if it fails or returns something else."""
        fault = self._random if self._random.random() < self._noise else None
        conversation = [{"role": each.role, "content": each.content} for each in messages]
        try:
            turn = self._function(self._item, conversation, fault)
        except Exception as error:  # whatever the user's function raises
            raise ItemError(f"gateway: option expert: it failed: {in_words(error)}") from error
        if isinstance(turn, str):
            return turn
        try:
            call = msgspec.convert(turn, _Call)
        except msgspec.ValidationError as error:
            raise ItemError(
                f"gateway: option expert: it returned {turn!r:.60}: {error}",
                hint='return a text or {"name": "…", "arguments": {…}}',
            ) from error
        return ToolCall(call.name, call.arguments)
