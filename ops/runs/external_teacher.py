"""A teacher that is an external model: it is asked through the policy server that has its key.

batch ─▶ a request per sequence ─▶ /v1/score of the [[policy]] ─▶ the model's API
           ▲ the missing ones        │ away: wait, keep what has arrived
           └─────────────────────────┘
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import numpy as np

from agentrl.core.errors import PolicyError
from agentrl.core.retry import Retry
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.batch import Batch, Ints
from agentrl.trainer.engines.learner import TeacherAway
from agentrl.workers.policies.client import (
    UNREADABLE,
    CheckpointNotServed,
    PolicyClient,
    RequestRefused,
)

MARGIN_S = 5.0  # beyond the server's own time limit of a request


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


class ExternalTeacher:
    """Scores tokens at temperature 1, whatever they were sampled at. It implements TeacherModel."""

    def __init__(self, name: str, server: ScoringServer, retry: Retry) -> None:
        """`name`: of the [[teacher]]. `retry`: repeats while the model is away (TeacherAway)."""
        self._name = name
        self._server = server
        self._retry = retry

    def logprobs(self, batch: Batch) -> Floats:
        """See TeacherModel. Raises PolicyError if the model cannot score these tokens."""
        sequences = _sequences_to_score(batch)
        scores: dict[int, list[float]] = {}

        def ask_missing() -> None:
            policy = self._find()

            def ask(start: int) -> None:
                scores[start] = self._ask(policy, sequences[start])

            missing = sequences.keys() - scores.keys()
            for first in missing:  # alone: an API that is away gets no more requests
                ask(first)
                break
            with ThreadPoolExecutor(self._server.concurrency) as pool:
                list(pool.map(ask, sequences.keys() - scores.keys()))

        self._retry.call(ask_missing)
        found = np.zeros(batch.tokens.size, np.float32)
        for start, values in scores.items():
            found[start + 1 : start + 1 + len(values)] = values
        return found

    def _find(self) -> LivePolicy:
        policy = self._server.find()
        if policy is None:
            raise TeacherAway("its policy is not served; see `agentrl status CONFIG`")
        return policy

    def _ask(self, policy: LivePolicy, tokens: Ints) -> list[float]:
        body = {"model": policy.checkpoint_id, "tokens": tokens.tolist()}
        server, who = self._server, f'teacher "{self._name}"'
        try:
            data = server.client.post(policy, "/v1/score", body, server.timeout_s + MARGIN_S)
            found = msgspec.json.decode(data, type=_Scores).logprobs
        except RequestRefused as error:
            raise PolicyError(f"{who}: {error}") from error
        except CheckpointNotServed as error:
            raise TeacherAway(str(error)) from error
        except UNREADABLE as error:
            raise PolicyError(f"{who}: policy server {policy.url}: malformed answer") from error
        if len(found) != tokens.size - 1:
            raise PolicyError(
                f"{who}: policy server {policy.url}: {len(found)} scores for {tokens.size} tokens"
            )
        return found


def _sequences_to_score(batch: Batch) -> dict[int, Ints]:
    """Return the tokens up to the last loss token of each sequence that has one, by their start."""
    ends = np.cumsum(batch.sequences)
    found = {}
    for start, end in zip((ends - batch.sequences).tolist(), ends.tolist(), strict=True):
        learned = np.flatnonzero(batch.loss_mask[start:end])
        if learned.size:
            found[start] = batch.tokens[start : start + int(learned[-1]) + 1]
    return found
