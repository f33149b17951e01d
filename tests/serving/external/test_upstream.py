"""Somebody else's API with its faults: what is tried again, what is spent, what ends it."""

import email.utils
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
from agentrl.core.errors import ConfigError
from agentrl.serving.external.upstream import (
    BACKOFF_S,
    MAX_ANSWER,
    Budget,
    BudgetSpent,
    Pace,
    Upstream,
    UpstreamUnavailable,
    require_key,
    retry_after,
)


@pytest.fixture
def there() -> Iterator[Endpoint]:
    with serve_endpoint(lambda _: completion("hello")) as found:
        yield found


def upstream(
    there: Endpoint,
    spent: tuple[int, int] = (0, 0),
    time_line: "TimeLine | None" = None,
    **given: object,
) -> Upstream:
    """A client whose waits take no time, unless the time line says so."""
    stop = time_line or TimeLine()
    fields = {"url": there.url, "model": "big", "timeout_s": 5.0, "key_env": "BIG_KEY"}
    config = External(**(fields | given))  # type: ignore[arg-type]
    kept = Kept(config, spent)
    found = Upstream(config, KEY, kept, stop, stop.now)
    found.kept = kept  # type: ignore[attr-defined]
    return found


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


class Kept(Budget):
    """A budget and what it told whoever keeps count."""

    def __init__(self, config: External, spent: tuple[int, int]) -> None:
        self.told: list[tuple[int, int]] = []
        super().__init__(config, spent, lambda *each: self.told.append(each))


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
    assert found.kept.told == [(1, 0), (0, 7)]  # type: ignore[attr-defined]


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
    assert found.kept.told == [(1, 0), (1, 0), (1, 0), (0, 7)]  # type: ignore[attr-defined]


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        (email.utils.formatdate(1_000_012, usegmt=True), 12.0),
        (email.utils.formatdate(999_000, usegmt=True), 0.0),
        ("soon", 0.0),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(text: str | None, seconds: float) -> None:
    assert retry_after(text, now=1_000_000.0) == seconds


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
    with pytest.raises(UpstreamUnavailable, match="ReadTimeoutError"):
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
        found = Upstream(config, KEY, Kept(config, (0, 0)), threading.Event())
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
    assert found.kept.told[0] == (1, 0)  # type: ignore[attr-defined]
    assert found.kept.told[1][1] >= 1  # type: ignore[attr-defined]
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


def test_a_budget_of_requests_counts_those_of_before(there: Endpoint) -> None:
    found = upstream(there, spent=(3, 0), max_requests=4)
    ask(found)
    with pytest.raises(BudgetSpent, match="all 4 are spent"):
        ask(found)
    assert len(there.asked) == 1


def test_a_budget_of_tokens_ends_with_the_answer_that_reaches_it(there: Endpoint) -> None:
    found = upstream(there, max_tokens=14)
    ask(found)
    ask(found)
    with pytest.raises(BudgetSpent, match="all 14 are spent"):
        ask(found)


def test_a_budget_that_was_spent_before_is_closed_from_the_start() -> None:
    config = External(url="http://h/v1", model="m", max_tokens=5)
    assert "all 5 are spent" in Budget(config, (1, 5), lambda *_: None).closed


def test_many_threads_never_ask_more_than_the_budget(there: Endpoint) -> None:
    found = upstream(there, max_requests=5)

    def one() -> None:
        try:
            found.ask("/chat/completions", {}, 5)
        except BudgetSpent:
            return

    threads = [threading.Thread(target=one) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.close()
    assert len(there.asked) == 5


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


@pytest.mark.parametrize(
    ("url", "model", "why"),
    [
        ("", "m", "not an http"),
        ("ftp://h/v1", "m", "not an http"),
        ("http://[", "m", "not an http"),
        ("https://h/v1?key=s3cret", "m", "not an http"),
        ("https://me:s3cret@h/v1", "m", "contains a secret"),
        ("https://h/v1", "", "model is not set"),
    ],
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused(
    url: str, model: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        require_key(External(url=url, model=model))
    assert "s3cret" not in str(caught.value)
