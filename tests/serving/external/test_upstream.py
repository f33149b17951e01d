"""Somebody else's API with its faults: what is tried again, what is spent, what ends it."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from openai_endpoint import KEY, Answer, Endpoint, completion, failure, serve_endpoint
from running import eventually

from agentrl.core.config.sections.policies import External
from agentrl.serving.external.upstream import (
    BACKOFF_S,
    MAX_ANSWER,
    Budget,
    BudgetSpent,
    Pace,
    Upstream,
    UpstreamFailed,
    UpstreamUnavailable,
)


@pytest.fixture
def there() -> Iterator[Endpoint]:
    with serve_endpoint(lambda _: completion("hello")) as found:
        yield found


def upstream(there: Endpoint, time_line: "TimeLine | None" = None, **given: object) -> Upstream:
    """A client whose waits take no time, unless the time line says so."""
    stop = time_line or TimeLine()
    fields = {"url": there.url, "model": "big", "timeout_s": 5.0, "key_env": "BIG_KEY"}
    config = External(**(fields | given))  # type: ignore[arg-type]
    return Upstream(config, KEY, CountedBudget(config), stop, stop.now)


class TimeLine(threading.Event):
    """A clock and its stop event: a wait takes no time and moves the clock; `waits`: so far."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.seconds

    def wait(self, timeout: float | None = None) -> bool:
        if timeout:
            self.waits.append(timeout)
            self.seconds += timeout
        return self.is_set()


class CountedBudget(Budget):
    """A budget from the start, and the counts that it stores."""

    def __init__(self, config: External) -> None:
        self.counts: list[tuple[int, int]] = []
        super().__init__(config, (0, 0), lambda *each: self.counts.append(each))


def counts_of(found: Upstream) -> list[tuple[int, int]]:
    assert isinstance(found._budget, CountedBudget)
    return found._budget.counts


def ask(found: Upstream, patience_s: float = 20.0) -> dict[str, object]:
    try:
        return found.ask("/chat/completions", {"messages": []}, patience_s)
    finally:
        found.close()


def in_turn(*answers: Answer) -> list[Answer]:
    return list(answers)


def test_a_question_goes_with_model_key_and_parameters(there: Endpoint) -> None:
    found = upstream(there, parameters={"top_p": 0.5, "model": "bigger"})
    assert ask(found)["choices"]
    assert there.asked == [
        ("/v1/chat/completions", {"model": "bigger", "messages": [], "top_p": 0.5})
    ]
    assert there.keys == [f"Bearer {KEY}"]
    assert counts_of(found) == [(1, 0), (0, 7)]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again_and_every_try_is_counted(
    there: Endpoint, status: int
) -> None:
    answers = in_turn(failure(status), failure(status), completion("at last"))
    there.script = lambda _: answers.pop(0)
    line = TimeLine()
    found = upstream(there, time_line=line)
    assert ask(found)["choices"]
    first, second = line.waits
    assert BACKOFF_S / 2 <= first <= BACKOFF_S <= second <= 2 * BACKOFF_S
    assert counts_of(found) == [(1, 0), (1, 0), (1, 0), (0, 7)]


def test_only_a_limit_that_is_everybody_s_holds_everybody(there: Endpoint) -> None:
    answers = in_turn(failure(500), completion("at once"))
    there.script = lambda _: answers.pop(0)

    class Blocking(TimeLine):
        """Its waits last until it is set."""

        waiting = threading.Event()

        def wait(self, timeout: float | None = None) -> bool:
            if timeout:
                self.waits.append(timeout)
                self.waiting.set()
                return threading.Event.wait(self, 60)
            return self.is_set()

    line = Blocking()
    found = upstream(there, time_line=line)

    def waits() -> None:
        with pytest.raises(UpstreamUnavailable, match="stopping"):
            found.ask("/chat/completions", {}, 200.0)

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(waits)
        assert line.waiting.wait(60)
        assert found.ask("/chat/completions", {}, 200.0)["choices"]  # it did not wait
        assert len(line.waits) == 1
        line.set()
        first.result(60)
    found.close()
    assert not answers


def test_retries_end(there: Endpoint) -> None:
    there.script = lambda _: failure(500, "oh dear")
    with pytest.raises(UpstreamUnavailable, match="500 oh dear"):
        ask(upstream(there, retries=2))
    assert len(there.asked) == 3


def test_retry_after_is_honoured(there: Endpoint) -> None:
    answers = in_turn(failure(429, "", Retry_After="7"), completion("now"))
    there.script = lambda _: answers.pop(0)
    line = TimeLine()
    ask(upstream(there, time_line=line))
    assert line.waits == [7.0]


def test_a_pause_longer_than_anyone_waits_is_no_answer_at_once(there: Endpoint) -> None:
    there.script = lambda _: failure(429, "", Retry_After="500")
    line = TimeLine()
    with pytest.raises(UpstreamUnavailable):
        ask(upstream(there, time_line=line))
    assert line.waits == []
    assert len(there.asked) == 1


def test_a_hang_is_tried_again_within_the_patience(there: Endpoint) -> None:
    gate = threading.Event()

    def hang(_: object) -> Answer:
        gate.wait(60)
        return completion("late")

    there.script = hang
    with pytest.raises(UpstreamFailed, match="ReadTimeoutError"):
        ask(upstream(there, timeout_s=0.4, retries=1))
    eventually(lambda: len(there.asked) == 2, within_s=60, text=lambda: str(there.asked))
    gate.set()


def test_an_answer_that_trickles_in_ends_like_a_hang() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, ExitStack() as stack:

        def trickle() -> None:
            client, _ = there.accept()
            with client, suppress(OSError):
                client.recv(1 << 16)
                client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n")
                while True:
                    client.sendall(b" ")
                    time.sleep(0.02)

        thread = threading.Thread(target=trickle)
        thread.start()
        stack.callback(thread.join, 10)
        config = External(
            url=f"http://127.0.0.1:{there.getsockname()[1]}/v1", model="m", timeout_s=0.5, retries=0
        )
        found = Upstream(config, KEY, CountedBudget(config), threading.Event())
        with pytest.raises(UpstreamUnavailable, match="TimeoutError"):
            ask(found)


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        "[]",
        '"x"',
        '{"choices"',
        "\xff",
        pytest.param("[" * (MAX_ANSWER + 1), id="too long"),
    ],
)
def test_an_answer_of_no_use_is_paid_for(there: Endpoint, data: str) -> None:
    there.script = lambda _: (200, {}, data.encode("latin-1"))
    found = upstream(there)
    with pytest.raises(UpstreamUnavailable, match="not JSON"):
        ask(found)
    assert counts_of(found)[0] == (1, 0)
    assert counts_of(found)[1][1] >= 1
    assert len(there.asked) == 1


def test_a_refusal_that_trying_again_cannot_mend_is_told_without_the_key(there: Endpoint) -> None:
    for asked, room in enumerate((0, 180), 1):  # whole, and where what is shown ends
        there.script = lambda _, room=room: failure(400, f"bad field,{' ' * room}{KEY}")  # type: ignore[misc]
        with pytest.raises(UpstreamUnavailable) as caught:
            ask(upstream(there))
        assert "400 bad field" in str(caught.value)
        assert KEY[:6] not in str(caught.value)
        assert len(there.asked) == asked


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (failure(401, KEY), r"the key was refused \(401\); see BIG_KEY"),
        (failure(403), "the key was refused"),
        (failure(402), "nothing left"),
        (failure(429, '{"error": {"code": "insufficient_quota"}}'), "nothing left"),
    ],
)
def test_a_key_or_an_account_that_is_refused_ends_it(
    there: Endpoint, answer: Answer, why: str
) -> None:
    there.script = lambda _: answer
    found = upstream(there)
    for _ in range(2):
        with pytest.raises(BudgetSpent, match=why) as caught:
            ask(found)
        assert KEY not in str(caught.value)
    assert len(there.asked) == 1


def test_a_redirect_is_not_followed(there: Endpoint) -> None:
    there.script = lambda _: failure(302, "", Location="http://127.0.0.1:1/else")
    with pytest.raises(UpstreamUnavailable, match="302"):
        ask(upstream(there))


def test_the_pace_spreads_requests_and_refuses_those_too_far_back() -> None:
    line = TimeLine()
    pace = Pace(600, line, line.now)
    for _ in range(4):
        pace.wait(5)
    assert line.waits == pytest.approx([0.1] * 3)
    slow = Pace(2, line, line.now)
    slow.wait(5)
    with pytest.raises(UpstreamUnavailable, match="next request in 30 s"):
        slow.wait(60)


def test_a_server_that_stops_waits_no_longer() -> None:
    stop = threading.Event()
    pace = Pace(10, stop)
    pace.wait(5)
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(UpstreamUnavailable, match="stopping"):
        pace.wait(9)
