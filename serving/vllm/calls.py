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


class VllmCalls:
    """Posts to the vLLM of a process. `limit_s`: time-out of a call in seconds."""

    def __init__(self, process: VllmProcess, section: Vllm, stop: threading.Event) -> None:
        """`stop`: ends the wait for a running call."""
        self.limit_s = section.call_s
        self.stop = stop
        self._start_s = section.start_s
        self._process = process
        self._warm = 0  # the generation that has scored
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="vllm-call")

    def post(self, target: str, body: Any) -> bytes:
        """Return the answer of a call. Raises EngineAway, VllmError."""
        line, limit_s = self._process.line(), self.limit_s
        if self._warm != self._process.generation():  # what it first computes may take long
            limit_s = self._start_s
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
