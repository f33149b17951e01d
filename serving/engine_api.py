"""The engine interface: requests and results in tokens."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from agentrl.core.errors import PolicyError

COLDEST, HOTTEST = 0.01, 100.0  # temperatures that fp32 logits survive


class RequestError(PolicyError):
    """A request is invalid. `field`: the wrong field."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field


class EngineAway(PolicyError):
    """The engine is starting or restarting. The same call may succeed later."""


@dataclass(frozen=True, slots=True)
class Request:
    """Continue `prompt` with a policy.

    temperature: 0 is greedy. stop_ids: each of them ends the completion. seed: None is random; a
    seed gives the same samples in any batch. session: conversation whose cached prefix may be
    reused; empty: none.
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
    """The sampled tokens, including a sampled stop token.

    logprobs: natural log, of the distribution each token was sampled from, log_softmax(logits / T)
    in fp32; at temperature 0 of T = 1. finish_reason: stop, length, or abort (ended
    early). cached_tokens: prompt tokens that were in the KV cache.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """vocabulary: token ids are below it. context: largest prompt plus completion, in tokens."""

    vocabulary: int
    context: int


class Engine(Protocol):
    """The engine interface. Thread-safe."""

    def limits(self, policy: str) -> ModelLimits:
        """Return the limits of a policy. Raises PolicyError if it is not loaded."""

    def alive(self) -> bool:
        """Return whether the engine works; a dead engine never answers again."""

    def submit(self, request: Request) -> Future[Completion]:
        """Submit a request. Raises RequestError, and PolicyError if the policy is not loaded.

        The future may fail with PolicyError; cancelling it ends the request at its next token.
        """


def check_request(request: Request, limits: ModelLimits) -> None:
    """Raise RequestError if the request exceeds the limits."""
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
