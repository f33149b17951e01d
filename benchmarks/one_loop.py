"""Episodes on one event loop instead of a thread each, with the product's own synchronous code.

    Celery task ─▶ a place ─▶ greenlet of EpisodeWorker.run ─(waits)─▶ asyncio ─▶ greenlet goes on

Every wait of an episode hops to the loop: the policy's answer over a connection of asyncio's own,
the environment's pause, and, on a few threads, the store's transactions and the broker's confirm.
The greenlets are those that SQLAlchemy runs its synchronous code in.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from agentrl.broker.api import Publisher, Waiting
from agentrl.broker.messages import Message, RunEpisode
from agentrl.core.errors import PolicyError
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.store import Store
from agentrl.workers.policies.client import CheckpointNotServed, PolicyClient
from agentrl.workers.worker import EpisodeWorker, EpisodeWorkerConfig

BLOCKING = 16  # threads for what blocks: as many as the store has connections
T = TypeVar("T")


def waited(work: Coroutine[Any, Any, T]) -> T:
    """An awaitable's outcome, while others go on."""
    return await_only(work)


def sleep(seconds: float) -> None:
    """What an environment waits with."""
    waited(asyncio.sleep(seconds))


class OneLoop:
    """A loop on a thread, `places` episodes at once."""

    def __init__(self, places: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(BLOCKING))
        self._places = threading.BoundedSemaphore(places)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def thin(self, run: Callable[[RunEpisode], None]) -> Callable[[RunEpisode], None]:
        """`run` as a task that returns once the episode has a place."""

        def task(command: RunEpisode) -> None:
            self._places.acquire()
            started = asyncio.run_coroutine_threadsafe(greenlet_spawn(run, command), self._loop)
            started.add_done_callback(self._ended)

        return task

    def _ended(self, episode: "Future[None]") -> None:
        self._places.release()
        episode.result()


async def _elsewhere(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


class HoppingStore(Store):
    """A store whose transactions of episodes run on the loop's threads."""

    def transact(self, work: Callable[[Session], T], *, patience_s: float | None = None) -> T:
        def direct() -> T:
            return super(HoppingStore, self).transact(work, patience_s=patience_s)

        return waited(_elsewhere(direct)) if in_greenlet() else direct()


class HoppingPublisher:
    """A publisher whose confirms episodes wait for on the loop's threads."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def publish(
        self, exchange: str, run_id: str, message: Message, *, waiting: Waiting | None = None
    ) -> None:
        waited(
            _elsewhere(lambda: self._publisher.publish(exchange, run_id, message, waiting=waiting))
        )

    def close(self) -> None:
        self._publisher.close()


class LoopWorker(EpisodeWorker):
    """A worker whose episodes ask policies over the loop."""

    def __init__(self, config: EpisodeWorkerConfig, run_id: str, store: Store, *rest: Any) -> None:
        super().__init__(config, run_id, HoppingStore(store.engine), *rest)
        self._context = replace(self._context, client=LoopClient(config.policy_token_env))


class LoopClient(PolicyClient):
    """Requests over asyncio's streams; a connection is kept for the next request."""

    def __init__(self, token_env: str) -> None:
        super().__init__(token_env=token_env, connections=1)
        self._free: dict[str, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}

    def post(
        self, policy: LivePolicy, path: str, body: Mapping[str, Any], timeout_s: float
    ) -> bytes:
        work = self._posted(policy.url, path, msgspec.json.encode(body))
        try:
            status, data = waited(asyncio.wait_for(work, timeout_s))
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            raise CheckpointNotServed(f"policy server {policy.url}: {error}") from error
        if status != 200:
            raise PolicyError(f"policy server {policy.url}: {status}")
        return data

    async def _posted(self, url: str, path: str, body: bytes) -> tuple[int, bytes]:
        place = urlsplit(url)
        free = self._free.setdefault(place.netloc, [])
        while free and free[-1][0].at_eof():
            free.pop()[1].close()
        reader, writer = (
            free.pop() if free else await asyncio.open_connection(place.hostname, place.port)
        )
        try:
            head = f"POST {path} HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-length: {len(body)}"
            writer.write(f"{head}\r\ncontent-type: application/json\r\n\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
            data = await reader.readexactly(size)
        except BaseException:
            writer.close()
            raise
        free.append((reader, writer))
        return int(answer.split(b" ", 2)[1]), data
