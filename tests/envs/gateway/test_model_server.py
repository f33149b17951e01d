"""How much a server of one model takes at once."""

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Event
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from running import eventually

from agentrl.envs.gateway import chat
from agentrl.envs.gateway.chat import MOST_TURNS
from agentrl.envs.gateway.messages import (
    DialogueReply,
    DialogueRequest,
    DialogueTurn,
    TokenCounts,
    policy_turn,
)
from agentrl.envs.gateway.model_server import (
    MOST_CONNECTIONS,
    MOST_WAITING,
    Address,
    ModelServer,
)


class Sampler:
    """Answers once `released` is set. `turns`: begun."""

    def __init__(self) -> None:
        self.released = Event()
        self.turns = 0

    async def __call__(self, request: DialogueRequest) -> DialogueReply:
        self.turns += request.count
        while not self.released.is_set():
            await asyncio.sleep(0.01)
        turn = DialogueTurn(policy_turn(1, "yes"), TokenCounts())
        return DialogueReply(1, (turn,) * request.count, request)


@pytest.fixture
def sampler() -> Sampler:
    return Sampler()


@pytest.fixture
def server(sampler: Sampler) -> Iterator[ModelServer]:
    with closing(ModelServer(Address("127.0.0.1", 0))) as server:
        server.start("m", sampler)
        yield server
        sampler.released.set()


def ask(server: ModelServer, count: int) -> tuple[int, str]:
    """Status and body of a request of so many turns."""
    asked = {"model": "m", "n": count, "messages": [{"role": "user", "content": "?"}]}
    try:
        with urlopen(server.url + chat.PATH, json.dumps(asked).encode()) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_request_beyond_the_waiting_turns_is_refused_until_they_are_sampled(
    server: ModelServer, sampler: Sampler
) -> None:
    requests = MOST_WAITING // MOST_TURNS
    with ThreadPoolExecutor(requests) as threads:
        waiting = [threads.submit(ask, server, MOST_TURNS) for _ in range(requests)]
        eventually(
            lambda: sampler.turns == MOST_WAITING, within_s=60, text=lambda: str(sampler.turns)
        )
        status, body = ask(server, 1)
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (429, "rate_limit_exceeded")
        assert error["type"] == "rate_limit_error"
        sampler.released.set()
        assert [each.result()[0] for each in waiting] == [200] * requests
    assert ask(server, MOST_TURNS)[0] == 200


def test_a_connection_too_many_is_closed(server: ModelServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            for _ in range(MOST_CONNECTIONS + 1)
        ]
        try:
            closed = clients[-1].recv(1) == b""
        except ConnectionResetError:
            closed = True
        assert closed
