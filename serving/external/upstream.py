"""Client of an external API with a budget, a rate limit and retries with back-off.

    ask ─▶ pace ─▶ budget ─▶ POST ─▶ 200: the answer
            ▲                  ├─ 429, 5xx, time-out: wait (Retry-After), again
            └──────────────────┘─ 401, 403, budget spent: closed for good

Each try counts against the budget and the rate of the account, and the API tells how long to wait,
so core/retry.py is not used.

The key is sent in one header only. No error, log, row or answer contains it; it is removed from
error texts of the API.
"""

import email.utils
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
import urllib3

from agentrl.core.config.sections.policies import External
from agentrl.core.errors import ConfigError, PolicyError
from agentrl.core.http.answers import AnswerTooLong, read_answer
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics

BACKOFF_S = 0.5  # before the second try, doubled for each further one
LONGEST_S = 30.0  # of a wait between two tries
QUEUE_S = 10.0  # a request that the pace would hold longer is refused
MAX_ANSWER = 32 * 1024 * 1024  # bytes; a token that is scored takes some 300
SHOWN = 200  # characters of a refusal
BYTES_A_TOKEN = 4  # where an answer does not count its tokens

log = get_logger()


class UpstreamUnavailable(PolicyError):
    """No answer this time. Another policy may answer."""


class RequestRefused(UpstreamUnavailable):
    """The API refused this request for good, or its answer is malformed."""


class UpstreamFailed(UpstreamUnavailable):
    """The last try timed out or ended in an error of the API. It may answer other requests."""


class BudgetSpent(PolicyError):
    """No further answer: the budget is spent, or the key was refused."""


class Budget:
    """The remaining budget. `spend(requests, tokens)`: stores the usage durably."""

    def __init__(
        self, config: External, spent: tuple[int, int], spend: Callable[[int, int], None]
    ) -> None:
        """`spent`: requests and tokens so far."""
        self._config = config
        self._requests, self._tokens = spent
        self._spend = spend
        self._lock = threading.Lock()
        self.closed = ""  # why; empty while it is open
        self._look()

    def take(self) -> None:
        """Count one try. Raises BudgetSpent."""
        with self._lock:
            self._look()
            if self.closed:
                raise BudgetSpent(self.closed)
            self._requests += 1
        self._spend(1, 0)
        metrics.UPSTREAM.inc()

    def add(self, tokens: int) -> None:
        with self._lock:
            self._tokens += tokens
            self._look()
        self._spend(0, tokens)
        metrics.TOKENS.labels(kind="upstream").inc(tokens)

    def close(self, why: str) -> BudgetSpent:
        """Disable the API; return the error to raise."""
        with self._lock:
            self.closed = self.closed or why
        return BudgetSpent(self.closed)

    def _look(self) -> None:
        config = self._config
        if config.max_requests is not None and self._requests >= config.max_requests:
            self.closed = self.closed or f"max_requests: all {config.max_requests} are spent"
        if config.max_tokens is not None and self._tokens >= config.max_tokens:
            self.closed = self.closed or f"max_tokens: all {config.max_tokens} are spent"


class Pace:
    """A rate limit per minute, evenly spread, with the pauses that the API asks for."""

    def __init__(
        self,
        per_minute: int | None,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gap_s = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()
        self._stop = stop
        self._clock = clock

    def wait(self, patience_s: float) -> None:
        """Wait for this request's turn. Raises UpstreamUnavailable if it is too far away."""
        with self._lock:
            now = self._clock()
            turn = max(now, self._next)
            if turn - now > min(QUEUE_S, patience_s):
                raise UpstreamUnavailable(
                    f"the rate limit allows the next request in {turn - now:.0f} s"
                )
            self._next = turn + self._gap_s
        if self._stop.wait(turn - now):
            raise UpstreamUnavailable("the server is stopping")

    def hold(self, seconds: float) -> None:
        """Pause all requests."""
        with self._lock:
            self._next = max(self._next, self._clock() + seconds)

    def sleep(self, seconds: float) -> None:
        """Pause this request."""
        self._stop.wait(seconds)


class Upstream:
    """Sends requests to one API. Thread-safe."""

    def __init__(
        self,
        config: External,
        key: str,
        budget: Budget,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """stop: ends every pause between tries. Raises ConfigError for a wrong URL."""
        self.host = require_key(config)
        self._url = config.url.rstrip("/")
        self._config = config
        self._key = key
        self._budget = budget
        self._pace = Pace(config.requests_per_minute, stop, clock)
        self._clock = clock
        self._http = urllib3.PoolManager(maxsize=config.concurrency)

    def ask(self, path: str, fields: Mapping[str, Any], patience_s: float) -> dict[str, Any]:
        """Send a request; return the JSON object. Raises UpstreamUnavailable, BudgetSpent."""
        body = {"model": self._config.model, **fields, **self._config.parameters}
        request = msgspec.json.encode(body)
        deadline, wait_s, why = self._clock() + patience_s, 0.0, ""
        kind = UpstreamUnavailable
        for attempt in range(self._config.retries + 1):
            left = deadline - self._clock()
            if wait_s > left or left <= 0:
                break
            self._pace.wait(left)
            self._budget.take()
            everyone, retry_after_s = False, 0.0
            try:
                status, retry_after_s, data = self._post(path, request, deadline)
            except urllib3.exceptions.HTTPError as error:
                why = type(error).__name__
            else:
                if status == 200:
                    return self._answer(data, len(request))
                why = self._refusal(status, data)
                everyone = status == 429 or retry_after_s > 0
            kind = UpstreamUnavailable if everyone else UpstreamFailed
            wait_s = max(retry_after_s, BACKOFF_S * 2**attempt * random.uniform(0.5, 1.0))
            if everyone:
                self._pace.hold(min(wait_s, LONGEST_S))
            elif attempt < self._config.retries and self._clock() + wait_s < deadline:
                self._pace.sleep(wait_s)
                wait_s = 0.0
        raise kind(f"external model at {self.host}: {why or 'no time left'}")

    def close(self) -> None:
        self._http.clear()

    def _post(self, path: str, body: bytes, deadline: float) -> tuple[int, float, bytes]:
        """Return status, seconds of Retry-After, and body or its start. Raises HTTPError.

        A slow body does not extend the time limit of the try.
        """
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        began = self._clock()
        read_s = max(0.1, min(self._config.timeout_s, deadline - began))
        response = self._http.request(
            "POST",
            f"{self._url}{path}",
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(connect=5, read=read_s),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        try:
            data = read_answer(response, began + read_s, largest=MAX_ANSWER, clock=self._clock)
        except AnswerTooLong as error:
            data = error.start  # it is paid for
        asked_s = retry_after(response.headers.get("retry-after"), time.time())
        return response.status, asked_s, data

    def _answer(self, data: bytes, request_bytes: int) -> dict[str, Any]:
        """Parse the answer and count its tokens, also of an unusable one. Raises RequestRefused."""
        try:
            answer = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._budget.add((request_bytes + len(data)) // BYTES_A_TOKEN)
            raise RequestRefused(
                f"external model at {self.host}: the answer is not JSON"
            ) from error
        usage = answer.get("usage")
        total = usage.get("total_tokens") if isinstance(usage, dict) else None
        counted = isinstance(total, int) and total > 0
        self._budget.add(
            total if counted and total else (request_bytes + len(data)) // BYTES_A_TOKEN
        )
        return answer

    def _refusal(self, status: int, data: bytes) -> str:
        """Handle an error status. Raises BudgetSpent, and RequestRefused for permanent errors."""
        if status in (401, 403):
            variable = self._config.key_env or "key_env, which is not set"
            raise self._budget.close(f"the key was refused ({status}); see {variable}")
        text = data.decode(errors="replace")
        text = (text.replace(self._key, "…") if self._key else text)[:SHOWN]
        if status == 402 or (status == 429 and "insufficient_quota" in text):
            raise self._budget.close(f"the account has nothing left ({status})")
        reason = f"{status} {text}"
        if status not in (408, 409, 425, 429) and status < 500:
            raise RequestRefused(f"external model at {self.host}: {reason}")
        return reason


def require_key(config: External) -> str:
    """Check the configuration; return the host, for errors. Raises ConfigError."""
    try:
        parts = urlsplit(config.url)
        sound = parts.scheme in ("http", "https") and parts.hostname and not parts.query
    except ValueError:
        sound = None
    if not sound:
        raise ConfigError(
            "policy.external.url is not an http(s) URL that ends in /v1",
            hint="set it to the address of an OpenAI API, such as http://127.0.0.1:8000/v1",
        )
    if parts.username or parts.password:
        raise ConfigError(
            "policy.external.url contains a secret",
            hint="put it into a variable and set policy.external.key_env",
        )
    if not config.model:
        raise ConfigError(
            "policy.external.model is not set", hint="set it to the name of a model of that server"
        )
    return parts.netloc


def retry_after(text: str | None, now: float) -> float:
    """Parse Retry-After, a number or a date, to seconds; 0 if it is neither."""
    if not text:
        return 0.0
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except (TypeError, ValueError):
        return 0.0
