"""`agentrl envs play`: a person plays an episode, at a terminal or through a pipe.

environment ─▶ messages ─▶ a line ─▶ calls or text ─▶ environment ─▶ … ─▶ status, reward, score
"""

import difflib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from agentrl.core.errors import ItemError, nearest
from agentrl.core.types import Status
from agentrl.envs.contract import (
    Environment,
    Expert,
    Item,
    Message,
    Outcome,
    TaskSource,
    Tool,
    ToolCall,
)
from agentrl.envs.play import Act, outcome_of, take_turns
from agentrl.ops.tasks.show import ItemChoice, message_text, open_item, tool_text, value_of
from agentrl.workers.conversation.tool_schema import check_call, keywords

PROMPT = "> "
_JSON = json.JSONDecoder()
_PAIR = re.compile(r"\s*(?P<name>[^\s=]+)=")
_NEXT = re.compile(r"\s(?P<name>[^\s=]+)=")
_WORD = re.compile(r"'[^']*'|\S*")
HELP = """\
name {"key": "value"}   call a tool with JSON arguments
name key=value …        the same; a value is a word, 'several words' or JSON
name a value            the same, if the tool has one parameter
anything else           a turn without a call
:expert  play the expert's next turn   :tools  list tools   :help  show this   :quit  quit"""

COMMANDS = (":expert", ":tools", ":help", ":quit")

Read = Callable[[], str]


def play(chosen: ItemChoice) -> None:
    """Play to the end of the episode or input, then remove its containers.

    Raises AgentRLError.
    """
    read = _reader()
    with open_item(chosen) as (source, item), closing(source.make(item)) as environment:
        TerminalPlayer(source, item, environment, read).play()


class Unclear(ValueError):
    """A line looks like a call but is not valid; the text says what to type instead."""


class TerminalPlayer:
    """One episode and its player. `read`: returns the next line; EOFError ends the episode."""

    def __init__(
        self, source: TaskSource, item: Item, environment: Environment, read: Read
    ) -> None:
        self._source = source
        self._item = item
        self._environment = environment
        self._read = read
        self._expert: Expert | None = None
        self._unseen: list[Message] = []  # by the expert

    def play(self) -> None:
        """Play, and print the messages and the result."""
        most = self._source.max_turns
        print(f"{self._item.task} {self._item.item_id}, at most {most} turns; type :help for help")
        first = self._environment.start().messages
        for tool in self._environment.tools:
            print(tool_text(tool))
        turns = list(take_turns(self._environment, first, self._act, most))
        outcome = outcome_of(first, turns)
        if len(turns) < most and not outcome.done:
            print(f"quit after {_turns(len(turns))}")
            return
        for message in outcome.messages:
            print(message_text(message))
        print(f"\n{_result(outcome)} after {_turns(len(turns))}")

    def _act(self, messages: Sequence[Message]) -> Act | None:
        """Show the messages and return the next turn; None: the person quits."""
        self._unseen += messages
        for message in messages:
            print(message_text(message))
        while True:
            try:
                line = self._read().strip()
            except (EOFError, KeyboardInterrupt):
                print()
                return None
            if line == ":quit":
                return None
            act = self._act_of(line) if line else None
            if act is not None:
                return act if isinstance(act, str) else [act]

    def _act_of(self, line: str) -> ToolCall | str | None:
        """Return the turn of a line; None: the line only asks to show something."""
        if line == ":expert":
            return self._show_help()
        if line == ":tools":
            print(*map(tool_text, self._environment.tools), sep="\n")
        elif line == ":help":
            print(HELP)
        elif line.startswith(":"):
            print(f"unknown command {line}{nearest(line, COMMANDS)}")
        else:
            try:
                return read_action(line, self._environment.tools)
            except Unclear as error:
                print(error)
        return None

    def _show_help(self) -> ToolCall | str | None:
        """Return the expert's turn; None: there is no expert."""
        try:
            self._expert = self._expert or self._source.expert(self._item, seed=0)
        except ItemError as error:
            print(f"the task has no expert: {error}")
            return None
        act = self._expert.act(tuple(self._unseen))
        self._unseen.clear()
        told = act if isinstance(act, str) else f"{act.name} {json.dumps(dict(act.arguments))}"
        print(f"expert: {told}")
        return act


def read_action(line: str, tools: Sequence[Tool]) -> ToolCall | str:
    """Parse a line as a valid call of a tool; return a line that names no tool unchanged.

    Raises Unclear.
    """
    name, _, rest = line.partition(" ")
    tool = next((each for each in tools if each.name == name), None)
    return line if tool is None else check_call(_call(tool, rest.strip()), {name: tool})


def _call(tool: Tool, text: str) -> ToolCall:
    if text.startswith("{"):
        value = value_of(text)
        return ToolCall(tool.name, value) if isinstance(value, dict) else _unread_call(tool, text)
    properties = tool.parameters.get("properties", {})
    pairs = _pairs(text, properties)
    if pairs is None and len(properties) == 1:
        ((name, schema),) = properties.items()
        pairs = {name: _parse_typed(text, schema)}
    return _unread_call(tool, text) if pairs is None else ToolCall(tool.name, pairs)


def _pairs(text: str, properties: Mapping[str, Any]) -> dict[str, Any] | None:
    """Parse `key=value …`; None: the text is a plain value.

    Raises Unclear if it begins as pairs but is not valid, or names no parameter.
    """
    found: dict[str, Any] = {}
    at, start, last = 0, 0, ""
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None and not found:
            return None
        if pair is None:
            raise Unclear(f"quote the value: {last}={_quote_hint(text[start:], properties)}")
        if pair["name"] not in properties:
            if not found and len(properties) == 1 and _words(text, properties):
                return None
            raise Unclear(f"no parameter {pair['name']}{_known_names(properties)}")
        last, start = pair["name"], pair.end()
        at = _end(text, start)
        found[last] = _parse_typed(text[start:at], properties[last])
    return found


def _words(text: str, properties: Mapping[str, Any]) -> bool:
    """Return whether a text with an unknown `key=` is itself the value, like `A=1 make`."""
    at = 0
    while pair := _PAIR.match(text, at):
        if at == 0 and difflib.get_close_matches(pair["name"], properties, 1):
            return False
        at = _end(text, pair.end())
    return at < len(text)


def _quote_hint(text: str, properties: Mapping[str, Any]) -> str:
    """Return the quoted value at the start of a text, up to the next parameter."""
    ends = (pair.start() for pair in _NEXT.finditer(text) if pair["name"] in properties)
    value = text[: next(ends, len(text))].strip()
    value = value.strip(value[0]) if value[:1] in ('"', "'") else value
    return json.dumps(value, ensure_ascii=False)


def _known_names(properties: Mapping[str, Any]) -> str:
    return f"; known: {', '.join(properties)}" if properties else "; it takes none"


def _end(text: str, at: int) -> int:
    """Return the end of the value at `at`: JSON, a quoted text, or a word."""
    try:
        _, end = _JSON.raw_decode(text, at)
    except (ValueError, RecursionError):
        end = at
    word = _WORD.match(text, at)
    return max(end, word.end() if word else at)


def _parse_typed(text: str, schema: Mapping[str, Any] | bool) -> Any:
    """Convert a value to the type in its schema, without quotes; unchanged if it does not fit."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = value = text[1:-1]
    else:
        value = value_of(text)
    kind = keywords(schema).get("type")
    if kind == "string":
        return value if isinstance(value, str) else text
    return [text] if kind == "array" and not isinstance(value, list) else value


def _unread_call(tool: Tool, text: str) -> ToolCall:
    return ToolCall(tool.name, {}, f"{tool.name}: arguments are neither JSON nor key=value: {text}")


def _result(outcome: Outcome) -> str:
    status = outcome.status if outcome.done else f"{Status.TASK_LIMIT}, turns ran out"
    score = outcome.score if outcome.done else 0.0
    metrics = "".join(f", {name} {value:g}" for name, value in outcome.metrics.items())
    return f"{status}: reward {outcome.reward:g}, score {score:g}{metrics}"


def _turns(count: int) -> str:
    return f"{count} turn{'' if count == 1 else 's'}"


def _reader() -> Read:
    """Return a line reader: with prompt and history on a terminal; of a pipe, echoing each line."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 - gives input() its history

        return lambda: input(PROMPT)

    def echoed() -> str:
        line = input()
        print(f"{PROMPT}{line}")
        return line

    return echoed
