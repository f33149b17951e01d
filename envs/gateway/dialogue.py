"""The conversation of one program: a request either extends it or is refused and ends the episode.

    opening request ─▶ tools, first messages        answer ─▶ next request ─▶ its new messages

Tokens are recorded in the order of sampling, so a rewritten or branching history cannot be
recorded.
"""

from agentrl.envs.contract import Message
from agentrl.envs.gateway.chat import ChatMessage, ChatRefused, ChatRequest


class Dialogue:
    """The conversation so far, from the program's view."""

    def __init__(self) -> None:
        self._first: ChatRequest | None = None
        self.said: tuple[ChatMessage, ...] = ()

    def extend(self, request: ChatRequest) -> tuple[Message, ...]:
        """Return the request's new messages.

        Raises Refused that names the first inconsistent message.
        """
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
        """Append the policy's turn as the program receives it."""
        self.said = (*self.said, turn)

    def _new(self, request: ChatRequest) -> tuple[ChatMessage, ...]:
        """Return the messages after the common ones."""
        for n, before in enumerate(self.said):
            where = f"messages[{n}]"
            if n >= len(request.said):
                raise ChatRefused(where, "missing: the request must repeat the conversation so far")
            now = request.said[n]
            if now != before:
                whose = "the answer sent" if before.role == "assistant" else "the earlier request"
                raise ChatRefused(where, f"differs from {whose}: messages can only be appended")
        new = request.said[len(self.said) :]
        if not new:
            raise ChatRefused(f"messages[{len(self.said)}]", "missing: no message after the answer")
        for n, each in enumerate(new, len(self.said)):
            if each.role not in ("tool", "user"):
                raise ChatRefused(f"messages[{n}]", f"role {each.role} after the first answer")
        return new


def _opening(request: ChatRequest) -> tuple[ChatMessage, ...]:
    """Return the first request's messages: at most one system message, at the beginning."""
    for n, each in enumerate(request.said):
        if each.calls:
            raise ChatRefused(f"messages[{n}]", "tool calls that the policy did not make")
        if each.role == "system" and n:
            raise ChatRefused(f"messages[{n}]", "a system message that is not the first")
    if not request.said or request.said[-1].role not in ("user", "tool"):
        raise ChatRefused("messages", "the last message must have the role user or tool")
    return request.said


def _message(where: str, each: ChatMessage, names: dict[str, str]) -> Message:
    """Convert to a Message of the contract: a tool message has its tool's name."""
    if each.role != "tool":
        return Message(each.role, each.content, each.name)
    name = names.get(each.answers, each.name)
    if not name:
        raise ChatRefused(where, f"answers no call: tool_call_id {each.answers[:40]!r}")
    return Message("tool", each.content, name)
