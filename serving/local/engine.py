"""The local engine: serves several policies in one process with one compute thread.

    submit ─▶ Batch.waiting ─▶ compute thread: one step of every busy batch in turn ─▶ Future

The continuous batching of transformers is not used: it is made for CUDA (31 tok/s on one CPU
thread, `generate` gave 2,955) and for one model. Its cache and attention hooks are used.
"""

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import torch

from agentrl.core.config.sections.base import check_device
from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.errors import CheckpointError, PolicyError
from agentrl.core.logging import get_logger
from agentrl.serving import checkpoint_loader
from agentrl.serving.engine_api import Completion, ModelLimits, Request, check_request
from agentrl.serving.engines import ServingConfig
from agentrl.serving.local.batch import Batch, Row
from agentrl.serving.local.kv_cache import Prefixes
from agentrl.serving.local.networks import Networks
from agentrl.serving.local.recorded_passes import Recorders, recorders_on
from agentrl.serving.local.served_model import verify_model


class LocalEngine:
    """The local engine: policies by name. Thread-safe."""

    places: int | None = None  # as many policies as memory holds
    draining_policies: int | None = 1  # `agentrl doctor` counts the memory of one

    def __init__(  # noqa: PLR0913 - its sizes, and how it computes
        self,
        device: str = "cpu",
        dtype: str = "float32",
        max_batch: int = 128,
        cache_tokens: int = 131_072,
        *,
        tolerance: float | None = None,
        recorders: Recorders | None = None,
    ) -> None:
        """max_batch: rows of one policy. cache_tokens: KV cache between turns, of all policies.

        It computes with as many CPU threads as torch has in the thread that makes it. dtype: the
        name of a torch dtype. tolerance: allowed median |Δlogp| between the model's own
        cache and ours; None: that of the dtype (serving/checkpoint_loader.py). recorders: None:
        those of the device.
        """
        self._networks = Networks(device, getattr(torch, dtype))
        self._tolerance = checkpoint_loader.tolerance(dtype, tolerance)
        self._recorders = recorders or recorders_on(device, self._tolerance)
        self._max_batch = max_batch
        self._prefixes = Prefixes(cache_tokens)
        self._batches: dict[str, Batch] = {}
        self._unloaded: list[tuple[str, Batch]] = []
        self._closed = False
        self._threads = torch.get_num_threads()
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._compute, name="engine", daemon=True)
        self._thread.start()

    def load(self, name: str, path: Path) -> None:
        """Load a model's or an adapter's directory. After an error nothing has changed.

        Raises CheckpointError, and PolicyError without enough memory: there may be some later.
        """
        if name in self.names():
            raise CheckpointError(f"policy {name} is already loaded")
        with _translate_out_of_memory(str(path)):
            model = verify_model(self._networks.open(path), path, self._tolerance)
        with self._wake:
            model = self._recorders.attach(model)
            self._batches[name] = Batch(name, model, self._prefixes, self._max_batch)

    def unload(self, name: str) -> None:
        """Free a policy; its unfinished requests fail with PolicyError."""
        with self._wake:
            self._unloaded.append((name, self._batch(name)))
            del self._batches[name]
            self._wake.notify()

    def names(self) -> list[str]:
        with self._wake:
            return sorted(self._batches)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def problem(self) -> str:
        return ""

    def limits(self, policy: str) -> ModelLimits:
        with self._wake:
            return self._batch(policy).model.limits

    def score(self, policy: str, token_ids: Sequence[int]) -> list[float] | None:
        """Like `LoadingEngine.score`, through the serving cache. Raises PolicyError."""
        with self._wake:
            model = self._batch(policy).model
        least, most = min(token_ids, default=-1), max(token_ids, default=0)
        limits = model.limits
        if not 2 <= len(token_ids) <= limits.context:
            raise PolicyError(
                f"policy {policy} cannot score {len(token_ids)} tokens: it takes 2 to "
                f"{limits.context}"
            )
        if least < 0 or most >= limits.vocabulary:
            raise PolicyError(
                f"policy {policy} cannot score these tokens: ids must be in "
                f"0…{limits.vocabulary - 1}"
            )
        with _translate_out_of_memory(f"the score of {len(token_ids)} tokens by policy {policy}"):
            return model.score(token_ids)

    def submit(self, request: Request) -> Future[Completion]:
        check_request(request, self.limits(request.policy))
        future: Future[Completion] = Future()
        row = Row(request, future, random.Random(request.seed), list(request.prompt))
        with self._wake:
            self._batch(request.policy).waiting.append(row)
            self._wake.notify()
        return future

    def close(self) -> None:
        """Fail unfinished requests and stop the compute thread."""
        with self._wake:
            self._closed = True
            self._unloaded.extend(self._batches.items())
            self._batches.clear()
            self._wake.notify()
        self._thread.join()

    def _batch(self, name: str) -> Batch:
        if name not in self._batches:
            raise PolicyError(f"policy {name} is not loaded")
        return self._batches[name]

    def _compute(self) -> None:
        """Run batches until closed; sleep while none is busy."""
        torch.get_num_threads()  # the first call in a thread takes what another thread set last
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while True:
                with self._wake:
                    self._wake.wait_for(self._has_work)
                    unloaded, self._unloaded = self._unloaded, []
                    busy = [(name, batch) for name, batch in self._batches.items() if batch.busy]
                for name, batch in unloaded:
                    batch.abort(f"policy {name} was unloaded")
                    batch.release()
                    self._prefixes.drop(name)
                if self._closed:
                    return
                for name, batch in busy:
                    _step(name, batch)

    def _has_work(self) -> bool:
        return bool(
            self._closed or self._unloaded or any(batch.busy for batch in self._batches.values())
        )


@contextmanager
def _translate_out_of_memory(subject: str) -> Iterator[None]:
    """Raise PolicyError where memory ends. `subject`: what does not fit."""
    try:
        yield
    except (CheckpointError, RuntimeError) as error:
        cause = error.__cause__ if isinstance(error, CheckpointError) else error
        if not _is_out_of_memory(cause):
            raise
        text = str(cause).partition(" If reserved")[0]
        raise PolicyError(
            f"{subject} does not fit into memory: {text}",
            hint="lower policy.cache_tokens, or end other processes on this device",
        ) from error


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether a device or the host is out of memory: most errors have no type of their own.

    Parts of them: "CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "DefaultCPUAllocator: …".
    """
    text = str(error)
    return any(part in text for part in ("out of memory", "ALLOC_FAILED", "DefaultCPUAllocator"))


def _step(name: str, batch: Batch) -> None:
    """Run one pass. If it fails (out of memory), only its own batch fails."""
    try:
        batch.step()
    except Exception as error:
        get_logger().exception("Batch of a policy failed", policy=name)
        batch.abort(f"policy {name} failed: {error}")
        batch.model.cache.clear()


def make(
    config: ServingConfig,
    server: PolicyServer,
    stop: threading.Event,  # noqa: ARG001 - the signature of engines
) -> LocalEngine:
    """Make an engine in this process and set torch's threads. Raises ConfigError."""
    model = config.model
    check_device(model.device, torch.cuda.device_count(), "model.device")
    torch.set_num_threads(server.threads)
    tolerance = checkpoint_loader.tolerance(model.dtype, server.tolerance)
    return LocalEngine(
        model.device,
        model.dtype,
        server.max_batch,
        server.cache_tokens,
        tolerance=tolerance,
        recorders=recorders_on(model.device, tolerance, server.graph_bytes),
    )
