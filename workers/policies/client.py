"""HTTP client of policy servers: token ids in and out, the subset of `/v1/completions` of vLLM."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

import msgspec
import urllib3
from msgspec import Meta

from agentrl.core.config.secrets import secret
from agentrl.core.errors import PolicyError
from agentrl.core.http.answers import read_answer
from agentrl.core.telemetry import tracing
from agentrl.db.registry.checkpoints import LivePolicy

CONNECT_S = 5.0  # to a policy server
SERVERS = 16  # whose connections are kept
SHOWN = 400  # characters of an error
PROBE_S = 120.0  # between two requests that show whether an external model is away
UNREACHABLE = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError)


class CheckpointNotServed(PolicyError):
    """The server does not serve the checkpoint now, or is gone. Draw again."""


class RequestRefused(CheckpointNotServed):
    """The external model refused this request, or its answer is malformed. Others may succeed."""


class Unanswered(CheckpointNotServed):
    """The server did not answer this request in time. It may answer others."""


class Unreachable(CheckpointNotServed):
    """The server cannot be connected to."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion. `logprobs`: natural logs, of the distribution that was sampled from.

    `finish_reason`: stop, length, or abort (the policy was replaced, another may continue the
    turn). `masked`: the log-probabilities are unusable, the tokens are not trained.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. `prompt`: token ids. `session`: the attempt, whose prefix may be cached."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float
    stop_ids: Sequence[int]
    seed: int
    session: str


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float]


class _Choice(msgspec.Struct):
    token_ids: list[Annotated[int, Meta(ge=0, lt=1 << 31)]]
    logprobs: _Logprobs
    finish_reason: str | None = None
    masked: bool = False


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class _Problem(msgspec.Struct):
    message: str


class _Fault(msgspec.Struct):
    error: _Problem


class CompletionClient(Protocol):
    """The interface of a policy client; raises CheckpointNotServed, PolicyError."""

    def complete(self, policy: LivePolicy, ask: Ask, *, timeout_s: float) -> Completion: ...

    def post(
        self, policy: LivePolicy, path: str, body: Mapping[str, Any], timeout_s: float
    ) -> bytes: ...


class PolicyClient:
    """Connections to all policy servers. Thread-safe."""

    def __init__(self, *, token_env: str = "", connections: int = 64) -> None:
        """`token_env`: variable with the bearer token; empty: none."""
        self._headers = {"content-type": "application/json"}
        if token := secret(token_env):
            self._headers["authorization"] = f"Bearer {token}"
        self._connections_to = lru_cache(SERVERS)(
            partial(urllib3.connection_from_url, maxsize=connections)
        )

    def complete(self, policy: LivePolicy, ask: Ask, *, timeout_s: float) -> Completion:
        """Sample one step. Raises CheckpointNotServed, PolicyError."""
        body: dict[str, Any] = {
            "model": policy.checkpoint_id,
            "prompt": list(ask.prompt),
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "stop_token_ids": list(ask.stop_ids),
            "seed": ask.seed,
            "logprobs": 0,
            "return_token_ids": True,
            "user": ask.session,
        }
        return _completion(policy, self.post(policy, "/v1/completions", body, timeout_s))

    def post(
        self, policy: LivePolicy, path: str, body: Mapping[str, Any], timeout_s: float
    ) -> bytes:
        """Send a request; return the answer. Raises CheckpointNotServed, PolicyError."""
        try:
            response = self._connections_to(policy.url).request(
                "POST",
                f"{urlsplit(policy.url).path}{path}",
                body=msgspec.json.encode(body),
                headers=self._headers | tracing.headers(),
                timeout=urllib3.Timeout(connect=CONNECT_S, read=timeout_s),
                retries=False,
                preload_content=False,
            )
            data = read_answer(response, time.monotonic() + timeout_s)
        except UNREACHABLE as error:
            raise Unreachable(f"policy server {policy.url}: {error}") from error
        except urllib3.exceptions.TimeoutError as error:
            raise Unanswered(f"policy server {policy.url}: {error}") from error
        except urllib3.exceptions.HTTPError as error:
            raise CheckpointNotServed(f"policy server {policy.url}: {error}") from error
        if response.status == 200:
            return data
        if response.status == 404:
            raise CheckpointNotServed(
                f"policy server {policy.url} does not serve {policy.checkpoint_id}"
            )
        reason = _reason(data)
        if response.status == 503:
            raise CheckpointNotServed(f"policy server {policy.url}: {reason}")
        if response.status == 504:
            raise Unanswered(f"policy server {policy.url}: {reason}")
        if response.status == 422:
            raise RequestRefused(f"policy server {policy.url}: {reason}")
        raise PolicyError(f"policy server {policy.url}: {response.status} {reason}")

    def close(self) -> None:
        self._connections_to.cache_clear()  # urllib3 closes a pool that no thread uses


def _reason(data: bytes) -> str:
    """Return the message of an error, or the beginning of what is none."""
    try:
        return msgspec.json.decode(data, type=_Fault).error.message[:SHOWN]
    except UNREADABLE:
        return data[:SHOWN].decode(errors="replace")


def _completion(policy: LivePolicy, data: bytes) -> Completion:
    try:
        choice = msgspec.json.decode(data, type=_Answer).choices[0]
    except UNREADABLE as error:
        raise PolicyError(f"policy server {policy.url} sent a malformed answer: {error}") from error
    if len(choice.token_ids) != len(choice.logprobs.token_logprobs) or not choice.token_ids:
        raise PolicyError(
            f"policy server {policy.url} sent different numbers of token ids and log-probabilities"
        )
    reason = choice.finish_reason or "stop"
    return Completion(choice.token_ids, choice.logprobs.token_logprobs, reason, choice.masked)
