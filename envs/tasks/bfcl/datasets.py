"""The benchmark's multi-turn items, as the package bfcl-eval holds them."""

import ast
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Item, require_split
from agentrl.envs.tasks import options
from agentrl.envs.tasks.bfcl.package import INSTALL, load_class, read_lines
from agentrl.envs.tasks.bfcl.problem import Call, Problem, Request
from agentrl.envs.tasks.datasets import Dataset

TASK = "bfcl"
SPLITS = ("base", "miss_func", "miss_param", "long_context")
V4 = Dataset(
    TASK,
    "v4",
    (),
    f"{INSTALL} (github.com/ShishirPatil/gorilla, folder berkeley-function-call-leaderboard)",
    "Apache-2.0",
    "800 multi-turn items, splits base, miss_func, miss_param and long_context",
    package="bfcl_eval",
)
DATASETS = (V4,)


class Entry(msgspec.Struct, frozen=True):
    """A question. `question`: the messages of each turn. `missed_function`: names, by turn."""

    id: str
    question: list[list[dict[str, str]]]
    involved_classes: list[str]
    initial_config: dict[str, dict[str, Any]] = {}
    missed_function: dict[str, list[str]] = {}


class Answer(msgspec.Struct, frozen=True):
    """The calls of each turn, written in Python."""

    id: str
    ground_truth: list[list[str]]


@cache
def published_items(split: str) -> tuple[Item, ...]:
    """Return the items of a category. Raises ItemError."""
    require_split(TASK, split, SPLITS)
    name = f"BFCL_v4_multi_turn_{split}.json"
    answers = {each.id: each.ground_truth for each in read_lines(f"possible_answer/{name}", Answer)}
    return tuple(
        Item(TASK, entry.id, options.content(_problem(entry, answers[entry.id], split)))
        for entry in read_lines(name, Entry)
    )


def _problem(entry: Entry, truth: list[list[str]], split: str) -> Problem:
    methods = {
        name: method
        for each in entry.involved_classes
        for name, method in inspect.getmembers(load_class(each), inspect.isfunction)
    }
    requests = [
        Request(
            "\n".join(message["content"] for message in messages),
            [parse_call(call, methods) for call in calls],
            functions=entry.missed_function.get(str(turn), []),
        )
        for turn, (messages, calls) in enumerate(zip(entry.question, truth, strict=True))
    ]
    config = {each: entry.initial_config.get(each, {}) for each in entry.involved_classes}
    return Problem(requests, entry.involved_classes, config, split == "long_context")


def parse_call(text: str, methods: Mapping[str, Any]) -> Call:
    """Read a call of the ground truth, `f(1, name='value')`; its arguments must be literals.

    Raises ItemError.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ItemError(f"bfcl: {text[:80]!r} is not a call")
        values = [ast.literal_eval(each) for each in call.args]
        names = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        signature = inspect.signature(methods[call.func.id])
        arguments = signature.bind(None, *values, **names).arguments
    except (SyntaxError, ValueError, TypeError, KeyError) as error:
        raise ItemError(f"bfcl: call {text[:80]!r}: {error}") from error
    return Call(call.func.id, {name: arguments[name] for name in arguments if name != "self"})
