"""Demonstrations for cloning: episodes of experts, and imported ones.

    item ─▶ environment + expert ─▶ Transcript ─▶ Conversation ─▶ Demonstration
    JSONL of messages ───────────▶ Transcript ─┘

An expert's calls are rendered as text like a policy's, so a demonstration has exactly the tokens of
a real episode with those turns.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np

from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ItemError
from agentrl.core.types import SOLVED
from agentrl.envs.contract import Item, Message, Outcome, TaskSource, Tool, ToolCall
from agentrl.envs.play import Act, take_turns
from agentrl.trainer.model.cloning import Demonstration
from agentrl.workers.conversation import toolcalls
from agentrl.workers.conversation.branches import Branches
from agentrl.workers.conversation.conversation import Conversation
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style

EXPERT_CHOICE = "shuffled items, fit episodes"  # another choice needs another name
UNSOLVED = "they do not solve their items"  # why episodes are unfit
UNSEEN = "their experts give an answer that an agent would have to find out first"
HINTS = {
    UNSEEN: "choose another split or origin for tasks.{task}, or import episodes",
    UNSOLVED: "raise tasks.{task}.max_turns, or clone failures, too: give the phase noise",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """The assistant's text and the messages that follow; none after the last turn.

    `follows`: as `Outcome.follows`. `tools`: of a conversation that then begins.
    """

    text: str
    answer: tuple[Message, ...]
    follows: int | None = None
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Transcript:
    """An episode as text. `unfit`: why it may not be cloned; empty: it may."""

    tools: tuple[Tool, ...]
    first: tuple[Message, ...]
    turns: tuple[Turn, ...]
    unfit: str = ""

    def texts(self) -> Iterator[str]:
        yield from (message.content for message in self.first)
        for turn in self.turns:
            yield turn.text
            yield from (message.content for message in turn.answer)


@dataclass(frozen=True, slots=True)
class Preparation:
    """Progress before the first step of a warm start: `played` expert episodes of a task."""

    phase: int
    task: str
    played: int
    episodes: int


@dataclass(frozen=True, slots=True)
class Demonstrator:
    """A task's experts on its training items. `noise`: probability of a fault per turn.

    Where an expert is to play without faults, an episode that does not solve its item is unfit. An
    expert that answers what it has not seen does not play: its empty episode is unfit.
    """

    source: TaskSource
    task: Task
    style: Style
    noise: float

    def episodes(self, count: int, seed: int) -> Iterator[Transcript]:
        """Yield `count` episodes, cycling through all items. Raises ItemError without an expert.

        Their order depends on the seed, because the first items of a split are often of one kind.
        """
        return self.part(range(count), seed * count)

    def part(self, numbers: Iterable[int], first_seed: int) -> Iterator[Transcript]:
        """Yield the episodes of these numbers; each number gives its item and its seed."""
        items = self.source.items(self.task.split)
        items = Random(first_seed).sample(items, len(items))
        for number in numbers:
            yield self._episode(items[number % len(items)], first_seed + number)

    def _episode(self, item: Item, seed: int) -> Transcript:
        expert = self.source.expert(item, seed=seed, noise=self.noise)
        if getattr(expert, "answers_unseen", False):
            return Transcript((), (), (), UNSEEN)
        texts: list[str] = []
        turns: list[Turn] = []

        def agent(messages: Sequence[Message]) -> Act:
            act = expert.act(messages)
            texts.append(act if isinstance(act, str) else toolcalls.render(act, self.style))
            return toolcalls.parse(texts[-1], environment.tools, self.style)

        last = Outcome(())
        most = self.task.max_turns or self.source.max_turns
        with closing(self.source.make(item)) as environment:
            first, tools = environment.start().messages, environment.tools
            for _, last in take_turns(environment, first, agent, most):
                turns.append(Turn(texts[-1], last.messages, last.follows, environment.tools))
        solved = last.done and last.score >= SOLVED
        unfit = "" if solved or self._has_faults else UNSOLVED
        return Transcript(tools, first, tuple(turns), unfit)

    @property
    def _has_faults(self) -> bool:
        """Return whether failures are wanted: with noise, and with a task's option `careless`."""
        return self.noise > 0 or bool(self.task.options.get("careless"))


def select_fit(
    task: str, transcripts: Sequence[Transcript], warn: Callable[[str], None]
) -> list[Transcript]:
    """Return what may be cloned of a task's episodes; warn of what is left out.

    Raises ItemError if nothing is left.
    """
    fit = [each for each in transcripts if not each.unfit]
    unfit = Counter(each.unfit for each in transcripts if each.unfit)
    lines = [
        f"{task}: {count:,} of {len(transcripts):,} expert episodes are left out: {reason}"
        for reason, count in unfit.items()
    ]
    if not fit:
        raise ItemError("; ".join(lines), hint=HINTS[next(iter(unfit))].format(task=task))
    for line in lines:
        warn(line)
    return fit


def encode(transcript: Transcript, template: ChatTemplate, style: Style) -> list[Demonstration]:
    """Tokenize the transcript, each branch with a turn of its own.

    The loss covers the assistant's tokens, including each end-of-turn token. What the program of an
    episode wrote in the assistant's place is context.
    """
    branches = Branches(Conversation, template, style, transcript.tools, transcript.first)
    for turn in transcript.turns:
        said = [*template.encode(turn.text), template.end_id]
        branches.current.append_sampled(said, [0.0] * len(said), 0)
        branches.end_turn()
        branches.observe(Outcome(turn.answer, follows=turn.follows), turn.tools)
    every = (each.arrays() for each in branches.conversations)
    return [
        Demonstration(
            np.frombuffer(arrays.token_ids, "<i4").astype(np.int32),
            np.frombuffer(arrays.loss_mask, np.uint8),
        )
        for arrays in every
        if any(arrays.loss_mask)
    ]


def import_transcripts(path: Path, style: Style) -> list[Transcript]:
    """Read transcripts from JSONL lines `{"messages": […], "tools": […]}` in OpenAI's format.

    Tool calls of assistant messages become text in the model's style. Raises ItemError with the
    number of an invalid line, or if there is none.
    """
    transcripts = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        try:
            if line.strip():
                transcripts.append(_transcript(msgspec.json.decode(line, type=_Line), style))
        except (msgspec.MsgspecError, ValueError) as error:
            raise ItemError(f"{path}: line {number}: {error}") from error
    if not transcripts:
        raise ItemError(f"{path}: no episode to learn from", hint="write a line for each episode")
    return transcripts


def digest(path: Path) -> str:
    """Return the SHA-256 of a file of imported episodes. Raises ItemError."""
    return hashlib.sha256(_read(path)).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ItemError(f"{path}: {error.strerror}") from error


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] = {}
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Call(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    """OpenAI's SDK writes null for what a message lacks."""

    role: str
    content: str | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None


class _Line(msgspec.Struct):
    messages: list[_Message]
    tools: list[_Call] | None = None


def _transcript(line: _Line, style: Style) -> Transcript:
    groups: list[list[Message]] = [[]]
    said: list[str] = []
    for message in line.messages:
        if message.role == "assistant":
            calls = (toolcalls.render(_call(call), style) for call in message.tool_calls or ())
            said.append(toolcalls.join_calls(message.content, calls))
            groups.append([])
        else:
            groups[-1].append(Message(message.role, message.content or "", message.name or ""))
    first, *answers = map(tuple, groups)
    if not first or not said or not all(answers[:-1]):
        raise ValueError(
            "messages must start with a prompt and then alternate with the assistant's"
        )
    functions = (tool.function for tool in line.tools or ())
    tools = tuple(
        Tool(each.name, each.description or "", each.parameters or {}) for each in functions
    )
    return Transcript(tools, first, tuple(map(Turn, said, answers)))


def _call(call: _Call) -> ToolCall:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        arguments = msgspec.json.decode(arguments, type=dict[str, Any])
    return ToolCall(call.function.name, arguments)
