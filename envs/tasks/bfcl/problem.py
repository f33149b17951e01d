"""The content of an item: requests, the initial state, and the calls of each request."""

from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.envs.contract import Item, Tool
from agentrl.envs.tasks.bfcl.world import Call
from agentrl.envs.tasks.options import read


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function as the benchmark's documents describe it; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]

    def tool(self) -> Tool:
        return Tool(self.name, self.description, self.parameters)


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message of the user. `truth`: the calls that do it; none: it is not judged.

    `short`: the message of a compact prompt.
    """

    text: str
    truth: list[Call] = []
    short: str = ""


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item. `config`: the state of each class. `described`: its tools, where not ours."""

    requests: list[Request]
    classes: list[str]
    config: dict[str, dict[str, Any]] = {}
    described: list[Described] = []

    def content(self) -> Mapping[str, Any]:
        """Of an Item: JSON values."""
        content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return content


def of(item: Item) -> Problem:
    """Raises ItemError."""
    return read(item.item_id, Problem, item.content)
