"""The conversation of an attempt as fields of its spans, as OpenTelemetry's conventions say.

    episode      the first messages, and the latest turn
    policy       the messages since the turn before, and the turn
    environment  the calls of the turn, and their results

A prompt repeats all that was said before. A span holds only what is new, so the size of a trace
grows with the conversation and not with its square.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentrl.core.telemetry import tracing
from agentrl.core.telemetry.tracing import Field
from agentrl.core.types import ABORT
from agentrl.envs.contract import Message, Outcome, Tool, ToolCall, shortened
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style, parse
from agentrl.workers.policies.client import Completion

TEXT_KEPT = 20_000  # characters of a text
MESSAGES_KEPT = 50  # the newest of a span

Part = dict[str, Any]


class TracedMessages:
    """Collects the messages of one attempt. Does nothing unless its trace wants them.

    Call `begin`, then for each turn `policy_fields`, or `repeat` where its tokens were recorded,
    `environment_fields` and `observe`.
    """

    def __init__(self, first: Sequence[Message], template: ChatTemplate, style: Style) -> None:
        """`first`: the first messages of the environment."""
        self._first = first
        self._template = template
        self._style: Style = style
        self._new: list[Part] = []
        self._repeated: list[int] = []  # tokens
        self._call_ids: list[str] = []  # of the calls that wait for a result
        self._turn = 0

    def begin(self) -> None:
        """Add the first messages to the root span."""
        self.observe(self._first)
        if tracing.wants_messages():
            system = [_text(each.content) for each in self._first if each.role == "system"]
            others = [_message(each) for each in self._first if each.role != "system"]
            tracing.annotate_attempt(**_fields(system_instructions=system, input_messages=others))

    def repeat(self, token_ids: Sequence[int]) -> None:
        """Note sampled tokens that have no span in this trace."""
        if tracing.wants_messages():
            self._repeated += token_ids

    def policy_fields(
        self, turn: Sequence[int], completion: Completion, tools: Sequence[Tool]
    ) -> Mapping[str, Field]:
        """Return the fields of a policy call. `turn`: the tokens of its turn before it."""
        if not tracing.wants_messages():
            return {}
        self._note_repeated()
        parts = [_text(self._decode(completion.token_ids))]
        if tools and completion.finish_reason != ABORT:
            calls = parse(self._decode([*turn, *completion.token_ids]), tools, self._style)
            if not isinstance(calls, str):
                parts += [self._call(number, call) for number, call in enumerate(calls)]
        answer = {"role": "assistant", "parts": parts, "finish_reason": completion.finish_reason}
        latest = _fields(output_messages=[answer])
        tracing.annotate_attempt(**latest)
        found = _fields(input_messages=self._new) | latest
        self._new = []
        return found

    def environment_fields(
        self, calls: Sequence[ToolCall] | str, outcome: Outcome
    ) -> Mapping[str, Field]:
        """Return the fields of the environment's answer to a turn."""
        if not tracing.wants_messages():
            return {}
        self._note_repeated()
        number = self._turn
        self._turn += 1
        if isinstance(calls, str):
            return {}
        self._call_ids = [_call_id(number, place) for place in range(len(calls))]
        one = calls[0].arguments if len(calls) == 1 else [_named(call) for call in calls]
        fields: dict[str, Field] = {
            "tool": shortened(", ".join(dict.fromkeys(call.name for call in calls)), 100),
            "tool_arguments": shortened(_encode(one), TEXT_KEPT),
        }
        if len(calls) == 1:
            fields["tool_call_id"] = self._call_ids[0]
        if outcome.messages:
            result = "\n".join(message.content for message in outcome.messages)
            fields["tool_result"] = shortened(result, TEXT_KEPT)
        return fields

    def observe(self, messages: Sequence[Message]) -> None:
        """Note what the next policy call reads."""
        if tracing.wants_messages():
            for message in messages:
                answers = message.role == "tool" and self._call_ids
                call_id = self._call_ids.pop(0) if answers else ""
                self._new.append(_message(message, call_id))
            self._call_ids = []

    def _call(self, number: int, call: ToolCall) -> Part:
        return {"type": "tool_call", "id": _call_id(self._turn, number)} | _named(call)

    def _note_repeated(self) -> None:
        if self._repeated:
            text = _text(self._decode(self._repeated))
            self._new.append({"role": "assistant", "parts": [text]})
            self._repeated = []

    def _decode(self, token_ids: Sequence[int]) -> str:
        ended = bool(token_ids) and token_ids[-1] in self._template.stop_ids
        return self._template.decode(token_ids[:-1] if ended else token_ids)


def _call_id(turn: int, number: int) -> str:
    return f"{turn}.{number}"


def _named(call: ToolCall) -> Part:
    arguments: Any = dict(call.arguments)
    if len(text := _encode(arguments)) > TEXT_KEPT:
        arguments = shortened(text, TEXT_KEPT)
    return {"name": shortened(call.name, 100), "arguments": arguments}


def _message(message: Message, call_id: str = "") -> Part:
    if message.role == "tool":
        result: Part = {"type": "tool_call_response", **({"id": call_id} if call_id else {})}
        parts = [result | {"response": shortened(message.content, TEXT_KEPT)}]
    else:
        parts = [_text(message.content)]
    parts += [{"type": "tool_call"} | _named(call) for call in message.calls]
    return {"role": message.role, "parts": parts}


def _text(text: str) -> Part:
    return {"type": "text", "content": shortened(text, TEXT_KEPT)}


def _fields(**messages: Sequence[Part]) -> dict[str, str]:
    """Encode lists that are not empty."""
    return {name: _encode(each[-MESSAGES_KEPT:]) for name, each in messages.items() if each}


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
