"""Threads are used again, hang without harm, and keep nothing alive."""

import asyncio
import gc
import threading
import time
import weakref
from typing import NoReturn

import pytest

from agentrl.envs.server.threads import Threads


def test_one_thread_does_all_work_that_comes_in_turn() -> None:
    async def work() -> set[int]:
        threads = Threads()
        idents = {await threads.run(threading.get_ident) for _ in range(20)}
        threads.close()
        return idents

    idents = asyncio.run(work())
    assert len(idents) == 1
    assert threading.get_ident() not in idents


def test_work_at_once_gets_a_thread_each_and_one_that_hangs_holds_up_nobody() -> None:
    async def work() -> None:
        threads, release, meeting = Threads(), threading.Event(), threading.Barrier(20)
        hung = threads.run(release.wait)
        await asyncio.gather(*(threads.run(lambda: meeting.wait(60)) for _ in range(20)))
        threads.close()
        release.set()
        assert await hung

    asyncio.run(work())


def test_threads_end_when_closed_also_those_that_were_busy() -> None:
    before = set(threading.enumerate())

    async def work() -> None:
        threads, release = Threads(), threading.Event()
        late = threads.run(release.wait)
        await threads.run(time.monotonic)
        threads.close()
        release.set()
        await late

    asyncio.run(work())
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("no"), ValueError),
        (StopIteration("no"), RuntimeError),
        (SystemExit("no"), RuntimeError),
        (asyncio.CancelledError("no"), RuntimeError),
        (BaseExceptionGroup("no", [GeneratorExit()]), RuntimeError),
    ],
)
def test_what_the_work_raises_is_raised_where_it_is_awaited(
    error: BaseException, raised: type[Exception]
) -> None:
    def fail() -> NoReturn:
        raise error

    async def work() -> None:
        threads = Threads()
        try:
            with pytest.raises(raised, match="no"):
                await threads.run(fail)
            assert await threads.run(lambda: 7) == 7
        finally:
            threads.close()

    asyncio.run(work())


def test_an_idle_thread_keeps_nothing_of_its_last_work_alive() -> None:
    class Held:
        def work(self) -> str:
            return "done"

    async def work() -> None:
        threads, held = Threads(), Held()
        ref = weakref.ref(held)
        assert await threads.run(held.work) == "done"
        del held
        deadline = time.monotonic() + 60
        while ref() is not None and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
            gc.collect()
        assert ref() is None
        threads.close()

    asyncio.run(work())
