"""The conversation of one program: a request either extends it or is refused and ends the episode.

    opening request ─▶ tools, first messages        answer ─▶ next request ─▶ its new messages

Tokens are recorded in the order of sampling, so a rewritten or branching history cannot be
recorded.
"""

from agentrl.envs.contract import Message
from agentrl.envs.gateway.chat import ChatMessage, ChatRefused, ChatRequest


class Dialogue:
    """What was said so far, as the program has it."""

    def __init__(self) -> None:
        self._first: ChatRequest | None = None
        self.said: tuple[ChatMessage, ...] = ()

    def extend(self, request: ChatRequest) -> tuple[Message, ...]:
        """The request's new messages. Raises Refused, which names the first that does not fit."""
        if self._first is None:
            new = _opening(request)
        else:
            if request.tools != self._first.tools:
                raise ChatRefused("tools", "differ from those of the first request")
            new = self._new(request)
        self._first = self._first or request
        names = {call.call_id: call.name for each in request.said for call in each.calls}
        messages = tuple(
            _message(f"messages[{len(self.said) + n}]", each, names) for n, each in enumerate(new)
        )
        self.said = request.said
        return messages

    def answered(self, turn: ChatMessage) -> None:
        """The policy's turn, as the program is told it."""
        self.said = (*self.said, turn)

    def _new(self, request: ChatRequest) -> tuple[ChatMessage, ...]:
        """What follows the messages that both have."""
        for n, before in enumerate(self.said):
            where = f"messages[{n}]"
            if n >= len(request.said):
                raise ChatRefused(where, "missing: the conversation so far is not repeated")
            now = request.said[n]
            if now != before:
                whose = "what was answered here" if before.role == "assistant" else "before"
                raise ChatRefused(where, f"not as {whose}: the conversation may only grow")
        new = request.said[len(self.said) :]
        if not new:
            raise ChatRefused(f"messages[{len(self.said)}]", "missing: nothing follows the answer")
        for n, each in enumerate(new, len(self.said)):
            if each.role not in ("tool", "user"):
                raise ChatRefused(f"messages[{n}]", f"role {each.role} after the first answer")
        return new


def _opening(request: ChatRequest) -> tuple[ChatMessage, ...]:
    """The first request's messages: at most one system message, and it comes first."""
    for n, each in enumerate(request.said):
        if each.calls:
            raise ChatRefused(f"messages[{n}]", "calls that were not sampled here")
        if each.role == "system" and n:
            raise ChatRefused(f"messages[{n}]", "a system message that is not the first")
    if not request.said or request.said[-1].role not in ("user", "tool"):
        raise ChatRefused("messages", "the last one is not the user's")
    return request.said


def _message(where: str, each: ChatMessage, names: dict[str, str]) -> Message:
    """As our contract has it: a tool message bears its tool's name."""
    if each.role != "tool":
        return Message(each.role, each.content, each.name)
    name = names.get(each.answers, each.name)
    if not name:
        raise ChatRefused(where, f"answers no call: tool_call_id {each.answers[:40]!r}")
    return Message("tool", each.content, name)
