"""Calls of vLLM other than completions: each ends in time, or when the policy server stops."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from agentrl.core.config.sections.policies import Vllm
from agentrl.serving.engine_api import EngineAway
from agentrl.serving.vllm.client import VllmError
from agentrl.serving.vllm.process import VllmProcess

STEP_S = 0.2  # between two looks at `stop` while we wait for a call
SLOWEST = 64 * 2**20  # bytes of weights a second that a slow disk yields


class VllmCalls:
    """Posts to the vLLM of a process."""

    def __init__(self, process: VllmProcess, section: Vllm, stop: threading.Event) -> None:
        """`stop`: ends the wait for a running call."""
        self.stop = stop
        self._call_s = section.call_s
        self._start_s = section.start_s
        self._process = process
        self._warm = 0  # the generation that has scored
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="vllm-call")

    def limit_s(self, size: int = 0) -> float:
        """Return the time-out in seconds of a call that reads `size` bytes of weights."""
        is_warm = self._warm == self._process.generation()  # what it first computes may take long
        return (self._call_s if is_warm else self._start_s) + size / SLOWEST

    def post(self, target: str, body: Any, size: int = 0) -> bytes:
        """Return the answer of a call; `size`: see `limit_s`. Raises EngineAway, VllmError."""
        line, limit_s = self._process.line(), self.limit_s(size)
        pending = self._threads.submit(line.post, target, body, limit_s)
        deadline = time.monotonic() + limit_s + 1.0
        while not wait([pending], STEP_S).done:
            if self.stop.is_set():
                raise EngineAway("the policy server is stopping")
            if time.monotonic() > deadline:
                raise VllmError(f"vLLM, {target}: no answer within {limit_s:g} s")
        return pending.result()

    def note_scored(self, generation: int) -> None:
        """From now on a call to this generation of vLLM has the usual time-out."""
        self._warm = generation

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
