"""The same vLLM asked in two ways: directly, and through a policy server as workers ask it.

Both ways are engines for `engine.episodes`: each request is an HTTP call on a thread of a pool.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

from vllm_pool import policy_server

from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.vllm.engine import VllmEngine
from agentrl.serving.vllm.process import NAME
from agentrl.workers.policies.client import Ask

TIMEOUT_S = 600.0


class Caller:
    """Answers requests with blocking calls, `most` at a time."""

    def __init__(self, call: Callable[[Request], list[int]], most: int) -> None:
        self._call = call
        self._threads = ThreadPoolExecutor(most)

    def submit(self, request: Request) -> Future[Completion]:
        return self._threads.submit(self._complete, request)

    def close(self) -> None:
        self._threads.shutdown()

    def _complete(self, request: Request) -> Completion:
        return Completion(self._call(request), [], "length")


@contextmanager
def without_server(engine: VllmEngine, most: int) -> Iterator[Caller]:
    """Ask vLLM itself, for no more than a plain client needs to go on with the conversation."""
    line = engine.line("policy")

    def call(request: Request) -> list[int]:
        body = {
            "model": NAME,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = json.loads(line.post("/v1/completions", body, TIMEOUT_S))
        tokens: list[int] = answer["choices"][0]["token_ids"]
        return tokens

    with closing(Caller(call, most)) as caller:
        yield caller


@contextmanager
def through_server(engine: VllmEngine, most: int) -> Iterator[Caller]:
    """Ask a policy server in front of vLLM, with log-probabilities as in training."""
    with policy_server(engine, "policy", most) as (client, live):

        def call(request: Request) -> list[int]:
            ask = Ask(
                prompt=request.prompt,
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                stop_ids=[],
                seed=len(request.prompt),
                session=request.session,
            )
            return client.complete(live, ask, timeout_s=TIMEOUT_S).token_ids

        with closing(Caller(call, most)) as caller:
            yield caller
