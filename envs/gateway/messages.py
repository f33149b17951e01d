"""What a program asks and what it is answered, in the words of no API.

    body ─▶ `read` of its API ─▶ DialogueRequest
                                        │ the policy's turn
    body ◀─ `answer` of its API ◀─ DialogueReply

Each API is one file of pure functions: chat.py, responses.py, anthropic.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.envs.contract import TokenLogprob, Tool, ToolCall, TurnTerms

MODEL = "agentrl"


class RequestRefused(Exception):
    """A request refused with status 400. `field`: of the request. `code`: for programs."""

    def __init__(self, field: str, text: str, *, code: str | None = None) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field
        self.code = code


@dataclass(frozen=True, slots=True)
class DialogueCall:
    """A tool call in a request or reply. Its id is compared with no other: programs change ids.

    `arguments`: parsed JSON, or text that is not valid JSON.
    """

    call_id: str = field(compare=False)
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class DialogueMessage:
    """A message in a request or reply. `answers`: id of the call that a tool message answers."""

    role: str
    content: str
    name: str = ""
    calls: tuple[DialogueCall, ...] = ()
    answers: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Length of a turn in tokens: before it, and itself. `cut`: it was ended by a limit."""

    prompt: int = 0
    completion: int = 0
    cut: bool = False


@dataclass(frozen=True, slots=True)
class DialogueRequest:
    """A program's request.

    `usage`: a stream ends with the number of tokens. `single`: only one call per turn. `must_call`:
    at least one. `must_json`: a turn without a call is a JSON object. `follows`: the number of the
    reply that `messages` follow; None: they are the whole conversation. `count`: how many turns the
    reply has, each sampled anew. `ignored`: fields that would change the sampling, tools that are
    left out. `echo`: fields that a reply repeats. `tuning`: those that tune the sampling, with
    their values, where the API reads them.
    """

    messages: tuple[DialogueMessage, ...]
    tools: tuple[Tool, ...]
    stream: bool = False
    usage: bool = False
    single: bool = False
    must_call: bool = False
    must_json: bool = False
    count: int = 1
    model: str = MODEL
    terms: TurnTerms = field(default_factory=TurnTerms)
    follows: int | None = None
    ignored: frozenset[str] = field(default=frozenset(), compare=False)
    echo: Mapping[str, Any] = field(default_factory=dict, compare=False)
    tuning: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """A turn of the policy. `stopped_at`: the text of `terms.stop` that ended it; empty: none.

    `tokens`: None if their log-probabilities were not asked for, or are not known.
    """

    message: DialogueMessage
    counts: TokenCounts
    stopped_at: str = ""
    tokens: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class DialogueReply:
    """The answer to a request: as many turns as it asked for, at least one.

    `number`: of the reply in its episode, from 1.
    """

    number: int
    turns: tuple[DialogueTurn, ...]
    request: DialogueRequest

    @property
    def turn(self) -> DialogueTurn:
        return self.turns[0]


def policy_turn(number: int, calls: Sequence[ToolCall] | str) -> DialogueMessage:
    """Return the policy's turn as a message. `number`: part of the ids of its calls."""
    if isinstance(calls, str):
        return DialogueMessage("assistant", calls)
    named = (
        DialogueCall(f"call_{number}_{n}", each.name, dict(each.arguments))
        for n, each in enumerate(calls)
    )
    return DialogueMessage("assistant", "", calls=tuple(named))


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, str]:
    """Return a text up to the first of the stop texts, and which one that is."""
    found = [(at, each) for each in stop if (at := text.find(each)) >= 0]
    at, which = min(found, default=(len(text), ""))
    return text[:at], which
