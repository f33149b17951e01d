"""The conversations of one program, as a tree of the policy's replies.

    request ─▶ whole conversation ─▶ the reply that it continues furthest ─▶ its new messages
                                     none: a conversation begins

A program may retry, ask several times at once, rewrite or compact its history, change its tools
and run agents beside each other. What the policy said keeps the tokens that were sampled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from agentrl.envs.contract import Message, Tool, ToolCall
from agentrl.envs.gateway.messages import DialogueMessage, DialogueRequest, RequestRefused


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request belongs. `whole`: its conversation. `messages`: the new ones.

    `follows`: the turn of the policy that they follow; 0: a conversation begins.
    """

    whole: tuple[DialogueMessage, ...]
    messages: tuple[Message, ...]
    follows: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply. `turn`: of the policy. `whole`: the conversation that ends with it."""

    number: int
    turn: int
    whole: tuple[DialogueMessage, ...]
    tools: tuple[Tool, ...]


class Dialogue:
    """The replies of the policy, from the program's view."""

    def __init__(self) -> None:
        self._replies: list[Reply] = []

    def place(self, request: DialogueRequest) -> Placement:
        """Find where a request belongs. Raises RequestRefused that names the first bad message."""
        whole = tuple(_merge(self._whole(request)))
        _check(whole)
        before = self._furthest(whole, request.tools)
        start, turn = (len(before.whole), before.turn) if before else (0, 0)
        return Placement(whole, tuple(self._messages(whole))[start:], turn)

    def add_reply(
        self, number: int, turn: int, placement: Placement, tools: tuple[Tool, ...],
        message: DialogueMessage,
    ) -> None:  # fmt: skip
        """Add a reply. `turn`: of the policy; `message`: as the program receives it."""
        self._replies.append(Reply(number, turn, (*placement.whole, message), tools))

    def last_replies(self) -> list[Reply]:
        """Return the replies whose conversations no other one continues, in order."""
        return [
            reply
            for number, reply in enumerate(self._replies)
            if not any(
                _continues(later.whole, reply.whole) for later in self._replies[number + 1 :]
            )
        ]

    def _whole(self, request: DialogueRequest) -> tuple[DialogueMessage, ...]:
        """Return the conversation of a request, also of one that names the reply it follows.

        Such a request brings its system messages anew, as in OpenAI's API.
        """
        if request.follows is None:
            return request.messages
        matches = (each.whole for each in self._replies if each.number == request.follows)
        followed = next(matches, None)
        if followed is None:
            text = f"there is no response {request.follows} in this episode"
            raise RequestRefused("previous_response_id", text)
        system = tuple(takewhile(lambda each: each.role == "system", request.messages))
        earlier = tuple(each for each in followed if each.role != "system")
        return (*system, *earlier, *request.messages[len(system) :])

    def _furthest(
        self, whole: tuple[DialogueMessage, ...], tools: tuple[Tool, ...]
    ) -> Reply | None:
        """Return the latest of the replies with the longest part of a conversation."""
        continued = (
            each
            for each in reversed(self._replies)
            if each.tools == tools and whole[: len(each.whole)] == each.whole
        )
        return max(continued, key=lambda each: len(each.whole), default=None)

    def _messages(self, whole: Sequence[DialogueMessage]) -> Iterator[Message]:
        """Yield messages of the contract: a tool's has its name, an assistant's its turn."""
        names: dict[str, str] = {}
        for number, each in enumerate(whole):
            if each.role == "assistant":
                names |= {call.call_id: call.name for call in each.calls}
                yield self._past_turn(each)
            elif each.role == "tool":
                name = names.get(each.answers, each.name)
                if not name:
                    text = f"answers no call: {each.answers[:40]!r} is the id of none"
                    raise RequestRefused(f"messages[{number}]", text)
                yield Message("tool", each.content, name)
            else:
                yield Message(each.role, each.content, each.name)

    def _past_turn(self, message: DialogueMessage) -> Message:
        turns = (each.turn for each in reversed(self._replies) if each.whole[-1] == message)
        calls = (
            ToolCall(call.name, call.arguments if isinstance(call.arguments, dict) else {})
            for call in message.calls
        )
        return Message("assistant", message.content, calls=tuple(calls), turn=next(turns, 0))


def _continues(later: Sequence[DialogueMessage], whole: Sequence[DialogueMessage]) -> bool:
    return len(later) > len(whole) and later[: len(whole)] == whole


def _merge(messages: Sequence[DialogueMessage]) -> Iterator[DialogueMessage]:
    """Yield messages: the system messages that open them as one, an assistant's in a row as one."""
    merged: DialogueMessage | None = None
    opening = True
    for each in messages:
        opening = opening and each.role == "system"
        if merged and merged.role == each.role and (opening or each.role == "assistant"):
            merged = _join(merged, each)
            continue
        if merged:
            yield merged
        merged = each
    if merged:
        yield merged


def _join(first: DialogueMessage, second: DialogueMessage) -> DialogueMessage:
    """Join two messages of one role, with a line break between their texts."""
    text = "\n".join(part for part in (first.content, second.content) if part)
    return DialogueMessage(first.role, text, first.name, (*first.calls, *second.calls))


def _check(whole: Sequence[DialogueMessage]) -> None:
    """Raise RequestRefused for a conversation that no chat template knows."""
    for number, each in enumerate(whole):
        if each.role == "system" and number:
            raise RequestRefused(f"messages[{number}]", "a system message that is not the first")
    spoken = [each for each in whole if each.role != "system"]
    if spoken and spoken[0].role == "assistant":
        text = "the conversation begins with an assistant's message"
        raise RequestRefused("messages[0]", text)
    if not spoken or spoken[-1].role not in ("user", "tool"):
        raise RequestRefused("messages", "the last message must be a user's or a tool's")
