"""A task whose rooms answer three turns and count the actions of all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from policy_servers import ScriptedEnvironment, ScriptedSource, won
from takeovers import ANSWERS

from agentrl.envs.contract import Item, Outcome, ToolCall


class Room(ScriptedEnvironment):
    actions = 0

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        Room.actions += 1
        return super().call(calls)


class Rooms(ScriptedSource):
    name = "rooms"

    def __init__(self, options: Mapping[str, Any]) -> None:  # noqa: ARG002
        super().__init__(self._room)

    def _room(self, item: Item) -> Room:  # noqa: ARG002
        return Room(list(ANSWERS), won())
