"""One function-call contract for every task: OpenAI tool schemas in, tool calls in, messages out.

    items(split) ─▶ make(item) ─▶ start() ─▶ Observation
                                    │
                    calls ─▶ call(calls) ─▶ Outcome ─▶ … until done, then close()

An Environment serves one episode. A failure that is not the agent's fault raises
`EnvironmentFailure`; a mistake of the agent is answered with a message that it can read.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeGuard, get_args

from agentrl.core.errors import ItemError, nearest
from agentrl.core.types import ID_LENGTH, Status

PROGRESS = "progress"  # the metric that says which share of the item is done, 0 to 1
UNSTORABLE = re.compile("[\\0\\ud800-\\udfff]")  # NUL and halves of characters


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. `role`: system, user, assistant or tool; `name`: the tool that answers.

    Of an assistant's: `calls` beside its text; `turn`: the policy's turn that it repeats, from 1;
    0: it is none of the policy's.
    """

    role: str
    content: str
    name: str = ""
    calls: "tuple[ToolCall, ...]" = ()
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the agent may call. `parameters`: JSON schema of its arguments, strict."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def schema(self) -> dict[str, Any]:
        """Return the entry for OpenAI's `tools`."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
                "strict": True,
            },
        }


def strings(name: str, description: str, *parameters: str) -> Tool:
    """Return a tool whose parameters are all required strings, as most tasks need."""
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(parameters),
        "additionalProperties": False,
    }
    return Tool(name, description, schema)


def require_split(task: str, split: str, known: Collection[str]) -> None:
    """Raises ItemError, with the nearest known split, unless the task has this one."""
    if split not in known:
        raise ItemError(f"{task}: unknown split {split}{nearest(split, known)}")


def shortened(text: str, most: int = 1000) -> str:
    """Cut an agent's text to a number of characters, and append its full length."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the agent made. `error`: why it could not be parsed or does not fit its schema."""

    name: str
    arguments: Mapping[str, Any]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """One problem of a task's split. `item_id` is stable and unique within the task.

    `content`: all that the task needs to create the environment; only JSON values. Raises ItemError
    for an id that the database cannot store.
    """

    task: str
    item_id: str
    content: Mapping[str, Any]

    def __post_init__(self) -> None:
        shown = f"{self.task}: the item id {self.item_id[:40]!r}"
        if len(self.item_id) > ID_LENGTH:
            raise ItemError(
                f"{shown}… has {len(self.item_id)} characters, the limit is {ID_LENGTH}",
                hint="give the item a shorter id",
            )
        if UNSTORABLE.search(self.item_id):
            raise ItemError(
                f"{shown} contains NUL or a lone surrogate, which databases cannot store",
                hint="give the item an id of printable text",
            )


@dataclass(frozen=True, slots=True)
class TurnTerms:
    """What is asked of the next turn. `max_tokens`: None: the run's own limit.

    `stop`: texts; the turn ends with the token that completes one of them. `trained`: False: it is
    left out of the loss. `logprobs`: a Counting environment receives its tokens.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    trained: bool = True
    logprobs: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A sampled token. `text`: what it adds to the turn's text; empty for a part of a character.

    `logprob`: the natural log of its probability when it was sampled.
    """

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Observation:
    """The first messages of an episode: at most one system message, then a user message."""

    messages: tuple[Message, ...]
    terms: TurnTerms = TurnTerms()

    @classmethod
    def of(cls, system: str, user: str) -> "Observation":
        return cls((Message("system", system), Message("user", user)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The environment's answer to a turn.

    `messages`: role tool (or user); empty when done. `reward`: of this turn, used for training; the
    episode's reward is the sum over its turns. `score`: the benchmark's own figure, which counts
    only when `done`; `status` then says how the episode ended. `metrics`: the last ones are those
    of the episode; PROGRESS may be given at every turn. `terms`: of the next turn. `follows`: the
    turn, from 1, that `messages` follow; 0: none, they begin a conversation with the tools of now;
    None: the latest turn. `branch_rewards`: when `done`, of the branches that end with these turns;
    empty: all share the episode's reward.
    """

    messages: tuple[Message, ...]
    done: bool = False
    status: Status = Status.COMPLETED
    reward: float = 0.0
    score: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    terms: TurnTerms = TurnTerms()
    follows: int | None = None
    branch_rewards: Mapping[int, float] = field(default_factory=dict)


Recovery = Literal["replayable", "restart_only"]
"""How an episode goes on when its worker has ended. `replayable`: an environment made anew answers
the same actions with the same messages and the same outcome, so the recorded actions are repeated.
`restart_only`: it starts again."""


class Environment(Protocol):
    """One episode, used once, by one thread."""

    @property
    def tools(self) -> tuple[Tool, ...]: ...

    def start(self) -> Observation:
        """Return the first messages."""

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        """Apply the calls of one assistant turn, in order; a str is a turn without a call."""

    def close(self) -> None:
        """Release all resources; safe to call twice and after any failure."""


class Counting(Environment, Protocol):
    """An environment that is told the length of each turn before its `call`."""

    def sampled(
        self,
        prompt: int,
        completion: int,
        finish_reason: str,
        tokens: Sequence[TokenLogprob] | None,
    ) -> None:
        """Receive the number of tokens before and of the turn; finish_reason: stop or length.

        `tokens`: of the turn, without the one that closes it; None: they were not asked for, or the
        turn is not in the loss.
        """


def is_counting(environment: Environment) -> TypeGuard[Counting]:
    """Return whether the environment, perhaps in a wrapper, is told the length of each turn."""
    return has_methods(environment, "sampled")


class Attachable(Environment, Protocol):
    """An environment in another process, which may outlive the worker that uses it."""

    def attach(self, session: str, fence: int) -> int:
        """Start the session of this name, or go on with it; return how many turns it has applied.

        Called before `start`, if at all. The first messages and those turns are answered from
        memory. Afterwards attempts with a lower fence can no longer use the session.
        """

    def leave(self) -> None:
        """Leave the session to the next attempt; `close` does nothing then."""


def is_attachable(environment: Environment) -> TypeGuard[Attachable]:
    """Return whether the environment, perhaps in a wrapper, can outlive its worker."""
    return has_methods(environment, "attach", "leave")


def has_methods(value: object, *names: str) -> bool:
    """Return whether the value has these methods, directly or through `__getattr__`.

    From Python 3.12 on `isinstance` with a protocol overlooks what only `__getattr__` provides.
    """
    return all(callable(getattr(value, name, None)) for name in names)


class Expert(Protocol):
    """An expert that solves generated items.

    One with `answers_unseen = True` gives an answer that an agent would have to find out first: it
    shows that the reward can be reached, and is not cloned.
    """

    def act(self, messages: Sequence[Message]) -> ToolCall | str:
        """Return the next turn, given the messages since its last one."""


class TaskSource(Protocol):
    """Provides the items and environments of one task.

    It may declare a `recovery` (`recovery_of`).
    """

    name: str
    max_turns: int

    @property
    def splits(self) -> tuple[str, ...]: ...

    def items(self, split: str) -> Sequence[Item]:
        """Return the items of a split, always in the same order. Raises ItemError."""

    def make(self, item: Item) -> Environment:
        """Create an environment for one episode. Raises ItemError, EnvironmentFailure."""

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        """Create an expert with probability `noise` of a fault per turn. Raises ItemError."""


def recovery_of(source: TaskSource) -> Recovery:
    """Return the declared `recovery` of a source; `restart_only` if it declares none.

    Raises ItemError for an unknown one.
    """
    declared: Recovery = getattr(source, "recovery", "restart_only")
    if declared not in get_args(Recovery):
        raise ItemError(
            f"{source.name}: recovery {declared!r} is unknown",
            hint=f"declare one of {', '.join(get_args(Recovery))}",
        )
    return declared
