"""What an engine is asked and what it answers: tokens in, tokens out."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from agentrl.core.errors import PolicyError

COLDEST, HOTTEST = 0.01, 100.0  # temperatures that fp32 logits survive


class RequestError(PolicyError):
    """A request that cannot be served as it stands. `field`: what is wrong with it."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field


class EngineAway(PolicyError):
    """The engine is starting, or starting again: what it is asked for now may be asked later."""


@dataclass(frozen=True, slots=True)
class Request:
    """Continue `prompt` with a policy.

    temperature: 0 is greedy. stop_ids: any of them ends the completion. seed: None draws freely;
    a seed draws the same uniforms whatever shares the batch. session: names the conversation
    whose earlier turns may be reused, empty for none.
    """

    policy: str
    prompt: list[int]
    max_tokens: int
    temperature: float = 1.0
    stop_ids: frozenset[int] = frozenset()
    seed: int | None = None
    session: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """The sampled tokens, a sampled stop token included.

    logprobs: natural log, of the distribution each token was sampled from, log_softmax(logits / T)
    in fp32; at temperature 0 of T = 1. finish_reason: stop | length | abort: what there was of one
    that had to end early. cached_tokens: prompt tokens whose keys and values were at hand.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """vocabulary: token ids are below it. context: most tokens of prompt plus completion."""

    vocabulary: int
    context: int


class Engine(Protocol):
    """What the server stands before; every method may be called from any thread."""

    def limits(self, policy: str) -> Limits:
        """Raises PolicyError for a policy that is not loaded."""

    def alive(self) -> bool:
        """Whether anyone computes; an engine that died answers nothing, ever."""

    def submit(self, request: Request) -> Future[Completion]:
        """Raises RequestError; PolicyError for a policy that is not loaded.

        The future may fail with PolicyError; cancelling it ends the request at its next token.
        """


def check(request: Request, limits: Limits) -> None:
    """Raise RequestError unless the request fits."""
    if not request.prompt:
        raise RequestError("prompt", "empty")
    if min(request.prompt) < 0 or max(request.prompt) >= limits.vocabulary:
        raise RequestError("prompt", f"token ids must be in 0…{limits.vocabulary - 1}")
    if request.max_tokens < 1:
        raise RequestError("max_tokens", "must be at least 1")
    length = len(request.prompt) + request.max_tokens
    if length > limits.context:
        raise RequestError(
            "prompt",
            f"{len(request.prompt)} tokens and max_tokens {request.max_tokens}"
            f" exceed the context of {limits.context}",
        )
    if request.temperature and not COLDEST <= request.temperature <= HOTTEST:
        raise RequestError("temperature", f"must be 0 or in {COLDEST}…{HOTTEST}")
