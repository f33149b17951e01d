"""The same vLLM asked in two ways: directly, and through a policy server as workers ask it.

    this process ─▶ HTTP ─▶ policy server ─┐
          └───────▶ Unix socket ───────────┴─▶ vLLM

The policy server has a process of its own, as in a run. Both ways are engines for
`engine.episodes`: each request is an HTTP call on a thread of a pool.
"""

import json
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from vllm_pool import engine_at, load, server_of

from agentrl.core import logging
from agentrl.core.config.sections.policies import Model, Vllm
from agentrl.core.types import CURRENT
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.vllm.client import VllmClient
from agentrl.serving.vllm.process import NAME
from agentrl.workers.policies.client import Ask, PolicyClient

POLICY = "policy"
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
def two_ways(section: Vllm, model: Model, most: int) -> Iterator[tuple[Caller, Caller]]:
    """Start this vLLM; yield it through its server, and alone."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(section, model, theirs))
    process.start()
    theirs.close()
    try:
        url, socket = ours.recv()
        with (
            closing(PolicyClient(connections=most)) as client,
            closing(VllmClient(socket)) as line,
            closing(Caller(_through_server(client, url), most)) as through,
            closing(Caller(_without_server(line), most)) as alone,
        ):
            yield through, alone
    finally:
        ours.close()
        process.join()


def _serve(section: Vllm, model: Model, pipe: Connection) -> None:
    """Tell both addresses, and serve until the other end of the pipe is closed."""
    logging.configure("policy", level="WARNING")
    with tempfile.TemporaryDirectory() as home:
        engine = engine_at(Path(home), section, rank=0, model=model)
        with closing(engine):
            load(engine, POLICY, Path(model.path))
            with server_of(engine, POLICY) as url:
                pipe.send((url, engine.line(POLICY).path))
                pipe.poll(None)


def _without_server(line: VllmClient) -> Callable[[Request], list[int]]:
    """Ask vLLM itself, for no more than a plain client needs to go on with the conversation."""

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

    return call


def _through_server(client: PolicyClient, url: str) -> Callable[[Request], list[int]]:
    """Ask the policy server, with log-probabilities as in training."""
    live = LivePolicy("server", url, CURRENT, POLICY, 0)

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

    return call
