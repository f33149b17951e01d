"""The environment protocol: JSON bodies, OpenAI messages, published statuses.

It is the protocol of AgentRL's task workers. Our additions, which others ignore: `score`, `error`,
`terms` and `follows` of an answer, `turn` and `tool_calls` of a message, `error` of a tool call,
the header `agentrl-turn`, which makes requests repeatable, and `agentrl-fence`, with which another
attempt goes on with a session.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from agentrl.core.types import Status
from agentrl.envs.contract import Message, Outcome, Tool, ToolCall, TurnTerms

T = TypeVar("T")

SESSION = "session_id"
OWNER = "agentrl-owner"  # header of a start: the process that owns the session
FENCE = "agentrl-fence"  # header: the attempt that asks; a session obeys the newest it met
TURN = "agentrl-turn"  # header: 0 starts, 1 is the first turn; the same number is the same request
MAX_BODY = 8 << 20  # bytes
RUNNING, FAILED = "running", "task error"
NO_SESSION = "No such session"
LARGEST = 1e300  # of rewards, scores and metrics

STATUSES: Mapping[Status, str] = {
    Status.COMPLETED: "completed",
    Status.TASK_LIMIT: "task limit reached",
    Status.INVALID_ACTION: "agent invalid action",
    Status.ENV_ERROR: FAILED,
    Status.CANCELLED: "cancelled",
}
OUTCOMES: Mapping[str, Status] = {
    "completed": Status.COMPLETED,
    "task limit reached": Status.TASK_LIMIT,
    "agent context limit": Status.TASK_LIMIT,
    "agent invalid action": Status.INVALID_ACTION,
    "agent validation failed": Status.INVALID_ACTION,
}


class MalformedBody(ValueError):
    """A body that is not JSON or has a wrong shape; the text names the field."""


class StartSample(msgspec.Struct):
    """`index`: an item's id, or its position in get_indices. `custom_task`: an item's content."""

    session_id: int
    index: int | str = -1
    custom_task: dict[str, Any] | None = None


class Function(msgspec.Struct):
    """`error`: our field: why the call is invalid."""

    name: str
    arguments: str | dict[str, Any] = ""
    error: str = ""


class Call(msgspec.Struct):
    function: Function
    id: str = ""


class Part(msgspec.Struct):
    text: str = ""


Content = str | list[Part] | None  # a list: OpenAI's content parts, of which we read the text


class AssistantMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: Content = None
    tool_calls: list[Call] | None = None


class Interact(msgspec.Struct):
    """One assistant turn: the last of `messages`."""

    session_id: int
    messages: Annotated[list[AssistantMessage], Meta(min_length=1)]


class Cancel(msgspec.Struct):
    session_id: int


class WireMessage(msgspec.Struct, omit_defaults=True):
    role: str
    content: Content = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Call] | None = None
    turn: int = 0


class WireFunction(msgspec.Struct):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class WireTool(msgspec.Struct):
    function: WireFunction


class EnvOut(msgspec.Struct):
    """The environment's answer: six fields of the protocol and five of ours."""

    messages: list[WireMessage]
    tools: list[WireTool] | None = None
    status: str = RUNNING
    finish: bool = False
    reward: float = 0.0
    metric: dict[str, Any] = {}
    score: float | None = None
    error: str = ""
    terms: TurnTerms = TurnTerms()
    follows: int | None = None
    branch_rewards: dict[int, float] = {}


class InteractAnswer(msgspec.Struct):
    env_out: EnvOut


def decode(content: bytes, kind: type[T]) -> T:
    """Decode a body as a `kind`; unknown fields are ignored. Raises MalformedBody."""
    with contextlib.suppress(ValueError, RecursionError):
        return msgspec.json.decode(content, type=kind)
    try:  # what msgspec refuses and JSON allows: a lone surrogate, a number like 1e999
        return msgspec.convert(_JSON.decode(_text(content)), kind)
    except (ValueError, RecursionError) as error:
        raise MalformedBody(str(error)) from error


def encode(value: Any) -> bytes:
    """Encode JSON with any text of an agent, even lone surrogates; no number becomes null."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def answer(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    ids: Sequence[str] = (),
    terms: TurnTerms | None = None,
) -> dict[str, Any]:
    """Return a running episode's answer.

    `ids`: of the calls that tool messages answer, in order.
    """
    waiting = iter(ids)
    fields = {} if terms in (None, TurnTerms()) else {"terms": msgspec.to_builtins(terms)}
    return fields | {
        "messages": [_wire_message(message, waiting) for message in messages],
        "tools": [tool.schema() for tool in tools],
        "status": RUNNING,
        "finish": False,
        "reward": 0,
        "metric": {},
    }


def outcome_answer(outcome: Outcome, tools: Sequence[Tool], ids: Sequence[str]) -> dict[str, Any]:
    """Return an outcome in the format of the protocol."""
    fields = answer(outcome.messages, tools, ids, outcome.terms)
    if outcome.follows is not None:
        fields["follows"] = outcome.follows
    if not outcome.done:
        return fields | {"reward": outcome.reward, "metric": dict(outcome.metrics)}
    if outcome.branch_rewards:
        fields["branch_rewards"] = dict(outcome.branch_rewards)
    return fields | {
        "status": STATUSES.get(outcome.status, "unknown"),
        "finish": True,
        "reward": outcome.reward,
        "metric": dict(outcome.metrics),
        "score": outcome.score,
    }


def failure_answer(status: Status, error: str) -> dict[str, Any]:
    """Return the answer for an end that the agent did not cause."""
    ended = {"status": STATUSES[status], "finish": True, "error": error}
    return answer((), ()) | ended


def assistant(calls: Sequence[ToolCall] | str) -> dict[str, Any]:
    """Return a turn as an OpenAI message; `turn` reads it."""
    if isinstance(calls, str):
        return {"role": "assistant", "content": calls}
    written = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.dumps(dict(call.arguments)),
                **({"error": call.error} if call.error else {}),
            },
        }
        for number, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": written}


def turn(message: AssistantMessage) -> tuple[list[ToolCall] | str, list[str]]:
    """Return the calls of an assistant's message and their ids, or its text if it has none."""
    if message.tool_calls is None:
        return _content(message.content), []
    calls = message.tool_calls
    return [_call(each.function) for each in calls], [each.id for each in calls]


def message(wired: WireMessage) -> Message:
    calls = tuple(_call(each.function) for each in wired.tool_calls or ())
    return Message(wired.role, _content(wired.content), wired.name or "", calls, wired.turn)


def score(answer: EnvOut) -> float:
    """Return our score field, or the score among the original's metrics, if any.

    Raises MalformedBody.
    """
    metric = answer.metric.get("score")
    value = metric if answer.score is None and isinstance(metric, int | float) else answer.score
    return finite(answer.reward if value is None else value)


def finite(number: float) -> float:
    """Return a finite number; JSON may contain 1e999 or 500 digits. Raises MalformedBody."""
    if not abs(number) <= LARGEST:
        raise MalformedBody("a reward or a score is no finite number")
    return float(number)


def tool(wired: WireTool) -> Tool:
    function = wired.function
    return Tool(function.name, function.description, function.parameters)


def _wire_message(message: Message, waiting: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        fields["name"] = message.name
    if message.role == "tool":
        fields["tool_call_id"] = next(waiting, "")
    if message.calls:
        fields["tool_calls"] = assistant(message.calls)["tool_calls"]
    return fields | ({"turn": message.turn} if message.turn else {})


def _call(function: Function) -> ToolCall:
    arguments: Any = function.arguments
    if isinstance(arguments, str):
        try:
            arguments = _JSON.decode(arguments)
        except (ValueError, RecursionError) as error:
            return ToolCall(function.name, {}, function.error or f"arguments are not JSON: {error}")
    if not isinstance(arguments, dict):
        return ToolCall(function.name, {}, function.error or "arguments are no JSON object")
    return ToolCall(function.name, arguments, function.error)


def _content(content: Content) -> str:
    return "".join(part.text for part in content) if isinstance(content, list) else content or ""


def _text(content: bytes) -> str:
    return content.decode(json.detect_encoding(content), "surrogatepass")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)
