"""The content of an item."""

import re
from typing import Literal

import msgspec

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Item
from agentrl.envs.tasks import options

Matcher = Literal["integer-match", "string-match", "size-match", "containing", "in"]


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A script that runs as a process of its own."""

    code: str
    language: Literal["bash", "python"] = "bash"


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Compares the answer: equal to `answer`, or else `regex` is found in it."""

    answer: str | None = None
    regex: str | None = None
    strip: bool = True


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step of a check: the item's own example, a script, or a matcher."""

    example: bool = False
    script: Script | None = None
    matcher: Matcher | None = None


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item, with a `match` or a `check`.

    `image`: the benchmark's name of what it runs in. `start`: run in the agent's shell before its
    first command. `example`: a solution that prints the answer. `short`: the description for a
    compact prompt. `commands`: what an expert runs; `answer`: what it then answers where that is
    not the last one's output.
    """

    description: str
    image: str = "default"
    init: list[Script] = []
    start: Script | None = None
    match: Match | None = None
    check: list[Step] = []
    example: Script | None = None
    short: str = ""
    commands: list[str] = []
    answer: str = ""


def read(item: Item) -> Problem:
    """Parse the item's problem, which has a match or a check. Raises ItemError."""
    problem = options.read(item, Problem)
    if (problem.match is None) == (not problem.check):
        raise ItemError(f"item {item.item_id}: needs either a match or a check, not both")
    if problem.match is not None and problem.match.regex is not None:
        try:
            re.compile(problem.match.regex)
        except re.error as error:
            raise ItemError(f"item {item.item_id}: regex: {error}") from error
    for step in problem.check:
        if step.example + (step.script is not None) + (step.matcher is not None) != 1:
            raise ItemError(f"item {item.item_id}: a step is an example, a script or a matcher")
        if step.example and problem.example is None:
            raise ItemError(
                f"item {item.item_id}: a step of its check uses the example, but it has none"
            )
    return problem
