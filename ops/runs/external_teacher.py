"""A teacher that is an external model: it is asked through the policy server that has its key.

batch ─▶ a request per sequence ─▶ /v1/score of the [[policy]] ─▶ the model's API
           ▲ the missing ones        │ away: TeacherAway, what has arrived is kept
           └── the trainer's loop ◀──┘

An API that is away is waited for. If it fails on one sequence, it is asked for another one every
`PROBE_S` seconds; after `PROBES` answers in a row, the failure is an error.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

import msgspec
import numpy as np

from agentrl.core.errors import PolicyError
from agentrl.core.processes.threads import DaemonExecutor
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.batch import Batch, Ints
from agentrl.trainer.engines.learner import TeacherAway, proceed
from agentrl.workers.policies.client import (
    PROBE_S,
    UNREADABLE,
    CheckpointNotServed,
    PolicyClient,
    RequestRefused,
)

LOOK_S = 0.1  # between two looks at the stop event
MARGIN_S = 5.0  # beyond the server's own time limit of a request
PROBES = 15  # answers in a row, while one sequence fails, that make this an error
STUCK = (
    "see the API's log; give it more time (policy.external.timeout_s) or memory, "
    "or lower sampling.max_tokens"
)


@dataclass(frozen=True, slots=True)
class ScoringServer:
    """How a teacher's policy server is asked. `find`: returns it while it is live, or None.

    `concurrency`: requests at the same time. `timeout_s`: the server's limit of a request.
    """

    find: Callable[[], LivePolicy | None]
    client: PolicyClient
    concurrency: int
    timeout_s: float


class _Scores(msgspec.Struct):
    logprobs: list[float]


@dataclass(slots=True)
class _FailingSequence:
    """A sequence that the API fails to score.

    `probed_at`: when it failed first, or when the API was last asked for something else.
    `answers`: to that, in a row.
    """

    key: bytes
    probed_at: float
    answers: int = 0


class ExternalTeacher:
    """Scores tokens at temperature 1, whatever they were sampled at. It implements TeacherModel."""

    def __init__(
        self,
        name: str,
        server: ScoringServer,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name`: of the [[teacher]]. `stop`: running requests are abandoned when it is set."""
        self._name = name
        self._server = server
        self._stop = stop
        self._clock = clock
        self._threads = DaemonExecutor("teacher")
        self._scores: dict[bytes, list[float]] = {}  # of sequences of the last batch
        self._failing: _FailingSequence | None = None

    def logprobs(self, batch: Batch, before_pass: Callable[[], object] = proceed) -> Floats:
        """See TeacherModel. Raises PolicyError if the model cannot score these tokens."""
        sequences = _sequences_to_score(batch)
        by_key = {tokens.tobytes(): tokens for tokens in sequences.values()}
        self._scores = {key: self._scores[key] for key in by_key.keys() & self._scores.keys()}
        missing = [tokens for key, tokens in by_key.items() if key not in self._scores]
        if missing:
            before_pass()
            self._score(self._find(), missing)
        found = np.zeros(batch.tokens.size, np.float32)
        for start, tokens in sequences.items():
            found[start + 1 : start + tokens.size] = self._scores[tokens.tobytes()]
        return found

    def _score(self, policy: LivePolicy, missing: Sequence[Ints]) -> None:
        """Ask for the scores of sequences. Raises PolicyError if the API always fails on one."""
        try:
            self._ask_all(policy, missing)
        except TeacherAway as error:
            first = missing[0]
            if first.tobytes() not in self._scores and not self._stop.is_set():
                self._require_away(policy, first, error)
            raise
        self._failing = None

    def _require_away(self, policy: LivePolicy, tokens: Ints, error: TeacherAway) -> None:
        """Raise PolicyError if the API has long failed on these tokens, but answers others.

        `error`: of the last try. The other request is for the first two tokens.
        """
        key, now = tokens.tobytes(), self._clock()
        failing = self._failing
        if failing is None or failing.key != key:
            failing = self._failing = _FailingSequence(key, probed_at=now)
        if now - failing.probed_at < PROBE_S:
            return
        failing.probed_at = now
        try:
            self._ask_all(policy, [tokens[:2]])
        except PolicyError:
            failing.answers = 0
            return
        failing.answers += 1
        if failing.answers >= PROBES:
            raise PolicyError(
                f"{error}; it has failed on these {tokens.size:,} tokens for "
                f"{PROBES * PROBE_S / 60:.0f} minutes, in which it answered other requests",
                hint=STUCK,
            ) from error

    def _ask_all(self, policy: LivePolicy, missing: Sequence[Ints]) -> None:
        """Ask for the scores of sequences. The first error is raised once no request is running."""
        todo, running, errors = deque(missing), set[Future[None]](), list[BaseException]()
        limit = 1  # an API that is away gets no more requests
        while running or (todo and not errors):
            while todo and not errors and len(running) < limit:
                running.add(self._threads.submit(self._ask, policy, todo.popleft()))
            done, running = wait(running, LOOK_S, FIRST_COMPLETED)
            errors += [error for each in done if (error := each.exception())]
            limit = self._server.concurrency if done else limit
            if self._stop.is_set():
                raise TeacherAway(f'teacher "{self._name}": the process is told to stop')
        if errors:
            raise errors[0]

    def _find(self) -> LivePolicy:
        policy = self._server.find()
        if policy is None:
            raise TeacherAway(
                f'teacher "{self._name}": its policy is not served; see `agentrl status CONFIG`'
            )
        return policy

    def _ask(self, policy: LivePolicy, tokens: Ints) -> None:
        body = {"model": policy.checkpoint_id, "tokens": tokens.tolist()}
        server, who = self._server, f'teacher "{self._name}"'
        try:
            data = server.client.post(policy, "/v1/score", body, server.timeout_s + MARGIN_S)
            found = msgspec.json.decode(data, type=_Scores).logprobs
        except PolicyError as error:
            is_away = isinstance(error, CheckpointNotServed) and not isinstance(
                error, RequestRefused
            )
            raise (TeacherAway if is_away else PolicyError)(f"{who}: {error}") from error
        except UNREADABLE as error:
            raise PolicyError(f"{who}: policy server {policy.url}: malformed answer") from error
        if len(found) != tokens.size - 1:
            raise PolicyError(
                f"{who}: policy server {policy.url}: {len(found)} scores for {tokens.size} tokens"
            )
        self._scores[tokens.tobytes()] = found


def _sequences_to_score(batch: Batch) -> dict[int, Ints]:
    """Return, by its start, each sequence with a loss token, up to the last of them."""
    ends = np.cumsum(batch.sequences)
    found = {}
    for start, end in zip((ends - batch.sequences).tolist(), ends.tolist(), strict=True):
        places = np.flatnonzero(batch.loss_mask[start:end])
        if places.size:
            found[start] = batch.tokens[start : start + int(places[-1]) + 1]
    return found
