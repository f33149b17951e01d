"""A scripted engine for tests: no model, but the same interface behind the real HTTP server."""

import math
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.errors import CheckpointError, PolicyError
from agentrl.serving.engine_api import Completion, ModelLimits, Request, check_request
from agentrl.serving.engines import ServingConfig

Script = Callable[[Request], Sequence[int]]
LIMITS = ModelLimits(vocabulary=768, context=4096)


class ScriptedEngine:
    """An engine that answers at once. Without a script it samples uniform tokens, seeded."""

    def __init__(
        self, script: Script | None = None, *, seed: int = 0, limits: ModelLimits = LIMITS
    ) -> None:
        """script: returns the tokens for a request; cut at a stop token and max_tokens."""
        self._script = script or self._uniform
        self._seed = seed
        self._limits = limits
        self._names: set[str] = set()
        self._lock = threading.Lock()

    places: int | None = None  # as many policies as anyone likes
    draining_policies: int | None = None

    def load(self, name: str, path: Path) -> None:  # noqa: ARG002 - the signature of engines
        with self._lock:
            self._names.add(name)

    def unload(self, name: str) -> None:
        self.limits(name)
        with self._lock:
            self._names.discard(name)

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._names)

    def alive(self) -> bool:
        return True

    def problem(self) -> str:
        return ""

    def limits(self, policy: str) -> ModelLimits:
        with self._lock:
            if policy not in self._names:
                raise PolicyError(f"policy {policy} is not loaded")
        return self._limits

    def score(self, policy: str, token_ids: Sequence[int]) -> list[float] | None:  # noqa: ARG002
        """Return None: there are no weights to compare."""
        self.limits(policy)
        return None

    def submit(self, request: Request) -> Future[Completion]:
        """As `Engine.submit`; log-probabilities are those of the uniform distribution."""
        check_request(request, self.limits(request.policy))
        tokens, reason = cut_at_stop(self._script(request), request)
        logprob = -math.log(self._limits.vocabulary)
        future: Future[Completion] = Future()
        future.set_result(Completion(tokens, [logprob] * len(tokens), reason))
        return future

    def close(self) -> None:
        with self._lock:
            self._names.clear()

    def _uniform(self, request: Request) -> list[int]:
        """Sample one to eight tokens, and a stop token if there is one."""
        rng = random.Random(f"{self._seed} {request.seed} {request.policy} {request.prompt}")
        count = min(rng.randint(1, 8), request.max_tokens) if request.stop_ids else None
        tokens = [
            rng.randrange(self._limits.vocabulary) for _ in range(count or request.max_tokens)
        ]
        return tokens + sorted(request.stop_ids)[:1]


def make(
    config: ServingConfig,
    server: PolicyServer,  # noqa: ARG001 - the signature of engines
    stop: threading.Event,  # noqa: ARG001
) -> ScriptedEngine:
    """An engine without a script, with the limits of the configuration's model."""
    return ScriptedEngine(seed=config.seed, limits=limits_of(Path(config.model.path)))


def cut_at_stop(tokens: Sequence[int], request: Request) -> tuple[list[int], str]:
    """Return the tokens up to the first stop token or max_tokens, and the finish reason."""
    for index, token in enumerate(tokens[: request.max_tokens]):
        if token in request.stop_ids:
            return list(tokens[: index + 1]), "stop"
    return list(tokens[: request.max_tokens]), "length"


def limits_of(model: Path) -> ModelLimits:
    """Read the limits of a model, or of its text model, in config.json. Raises CheckpointError."""
    described = read_description(model)
    try:
        config = msgspec.convert(described.get("text_config") or described, _ModelConfig)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{model / 'config.json'}: {error}") from error
    return ModelLimits(config.vocab_size, config.max_position_embeddings)


def read_description(model: Path) -> dict[str, Any]:
    """Read a model's config.json. Raises CheckpointError."""
    path = model / "config.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path}: {error}") from error


class _ModelConfig(msgspec.Struct):
    vocab_size: int
    max_position_embeddings: int
