"""Reads the messages of a recorded episode back from its tokens, by the chat template's markers.

tokens before the first turn ─▶ system, user          a turn's span ─▶ assistant
tokens between two turns     ─▶ tool, user

Rendered turn by turn and encoded again, the messages give the recorded tokens, or there are none: a
turn may have bytes that are no text, special tokens, or a split that no tokenizer makes. What the
template wrote of the tools is part of the message that it wrote them into.
"""

from collections.abc import Iterator, Sequence

import msgspec

from agentrl.core.errors import ConfigError
from agentrl.core.trajectory import StepRecord, Trajectory
from agentrl.core.types import ABORT
from agentrl.envs.contract import Message
from agentrl.workers.conversation.template import ChatTemplate

_MARKS = [f"⁂{number}⁂" for number in range(64)]  # stand for contents


def read_messages(body: Trajectory, template: ChatTemplate) -> list[Message] | None:
    """Return the episode's messages; None if they would not give the recorded tokens, and for an
    episode with branches, which is no single conversation.
    """
    if body.has_branches:
        return None
    tokens = body.tokens().tolist()
    turns = list(_turns(body.steps))
    if not turns:
        return None
    opening = tokens[: turns[0][0]]
    found = _find(template, opening, _openings())
    if found is None:
        return None
    messages = list(found)
    ends = [start for start, _, _ in turns[1:]] + [len(tokens)]
    for (start, end, names), following in zip(turns, ends, strict=True):
        said = tokens[start:end]
        closed = said[-1:] == [template.end_id]
        if closed or (end == following and said and said[-1] in template.stop_ids):
            said = said[:-1]
        text = template.decode(said)
        if template.encode(text) != said:
            return None
        messages.append(Message("assistant", text))
        if end == following:
            continue
        gap = tokens[end - closed : following]
        answer = _find(template, gap, _answers(names), tail=True)
        if answer is None:
            return None
        messages += answer
    return messages


def _turns(steps: Sequence[StepRecord]) -> Iterator[tuple[int, int, Sequence[str]]]:
    """Yield each turn's span and the names of its calls; an aborted step is continued."""
    start = None
    for step in steps:
        start = step.start if start is None else start
        if step.finish_reason != ABORT:
            yield start, step.end, _names(step.call)
            start = None


def _names(call: str) -> Sequence[str]:
    try:
        calls = msgspec.json.decode(call, type=list[dict[str, object]])
    except msgspec.MsgspecError:  # a turn without a call
        return []
    return [str(each.get("name", "")) for each in calls]


def _openings() -> Iterator[Sequence[Message]]:
    """Yield the shapes of a first prompt, with marks for the contents."""
    yield Message("system", _MARKS[0]), Message("user", _MARKS[1])
    yield (Message("user", _MARKS[0]),)


def _answers(names: Sequence[str]) -> Iterator[Sequence[Message]]:
    """Yield the shapes of what may follow a turn with these calls."""
    marks = _MARKS[: len(_MARKS) - 1]
    calls = [Message("tool", mark, name) for mark, name in zip(marks, names, strict=False)]
    user = Message("user", _MARKS[-1])
    for count in range(len(calls), 0, -1):
        yield calls[:count]
        yield [*calls[:count], user]
    yield [user]


def _find(
    template: ChatTemplate,
    tokens: list[int],
    shapes: Iterator[Sequence[Message]],
    *,
    tail: bool = False,
) -> Sequence[Message] | None:
    """Return the messages of the first shape that gives these tokens."""
    text = template.tokenizer.decode(tokens, skip_special_tokens=False)

    def rendered(messages: Sequence[Message]) -> str:
        if tail:
            return template.tail(messages, [])
        return template.render(messages, [], generate=True)

    for shape in shapes:
        try:
            contents = _contents(text, rendered(shape), [each.content for each in shape])
        except ConfigError:  # the template knows no such conversation
            continue
        if contents is None:
            continue
        messages = [
            Message(each.role, content, each.name)
            for each, content in zip(shape, contents, strict=True)
        ]
        if template.encode(rendered(messages)) == tokens:
            return messages
    return None


def _contents(text: str, pattern: str, marks: Sequence[str]) -> list[str] | None:
    """Return what stands in place of the marks; None if the text does not have this shape."""
    found: list[str] = []
    for mark in marks:
        before, present, pattern = pattern.partition(mark)
        at = text.find(before)
        if not present or at < 0 or (at > 0 and not found):
            return None
        if found:
            found[-1] = text[:at]
        text = text[at + len(before) :]
        found.append(text)
    if not text.endswith(pattern):
        return None
    found[-1] = text.removesuffix(pattern)
    return found
