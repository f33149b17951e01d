"""The content of an item: requests, the initial state, and the calls of each request."""

from collections.abc import Iterator
from typing import Any

import msgspec

from agentrl.envs.contract import Tool
from agentrl.envs.tasks.bfcl.package import class_tools


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of the ground truth, its arguments by name: JSON values."""

    name: str
    arguments: dict[str, Any] = {}


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message of the user. `truth`: the calls that do it; empty: it is not judged.

    `short`: the message in the compact style. `functions`: names of the functions that the agent
    does not have before this request.
    """

    text: str
    truth: list[Call] = []
    short: str = ""
    functions: list[str] = []


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item. `config`: the initial state of each class.

    `long_context`: the classes answer at length, as in the category of that name.
    """

    requests: list[Request]
    classes: list[str]
    config: dict[str, dict[str, Any]] = {}
    long_context: bool = False

    def tools(self, number: int) -> Iterator[Tool]:
        """Yield the tools that the agent has at request `number`. Raises ItemError."""
        later = {name for request in self.requests[number + 1 :] for name in request.functions}
        for each in self.classes:
            yield from (tool for tool in class_tools(each) if tool.name not in later)
