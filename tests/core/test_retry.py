import threading
from contextlib import suppress
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from agentrl.core.retry import FOREVER, Backoff, Retry


class Away(Exception):
    pass


class Clock:
    """Time that only passes where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def backoff(self) -> Backoff:
        return Backoff(clock=lambda: self.now, sleep=self.sleep)


class Service:
    """Away until its clock says `back_at`."""

    def __init__(self, clock: Clock, back_at: float) -> None:
        self.clock, self.back_at, self.calls = clock, back_at, 0

    def ask(self) -> str:
        self.calls += 1
        if self.clock.now < self.back_at:
            raise Away("connection refused")
        return "answer"


def _retry(clock: Clock, limit_s: float, stop: threading.Event | None = None) -> Retry:
    return Retry(
        "store",
        lambda error: isinstance(error, Away),
        limit_s=limit_s,
        stop=stop,
        backoff=clock.backoff(),
    )


def test_a_service_that_answers_is_asked_once_and_nothing_is_logged() -> None:
    clock = Clock()
    service = Service(clock, 0.0)
    with capture_logs() as lines:
        assert _retry(clock, 0.0).call(service.ask) == "answer"
    assert (service.calls, clock.pauses, lines) == (1, [], [])


def test_a_service_that_is_away_for_an_hour_is_waited_for_in_pauses_of_two_seconds_at_most() -> (
    None
):
    clock = Clock()
    retry = _retry(clock, FOREVER)
    assert retry.call(Service(clock, 3600.0).ask) == "answer"
    assert clock.now >= 3600.0
    assert max(clock.pauses) <= 2.0
    assert retry._away_since is None


def test_the_last_error_is_raised_before_the_limit_is_passed() -> None:
    clock = Clock()
    retry = _retry(clock, 30.0)
    with pytest.raises(Away, match="refused"):
        retry.call(Service(clock, 3600.0).ask)
    assert 28.0 <= clock.now <= 30.0
    assert retry._away_since == 0.0


def test_one_call_may_have_a_limit_of_its_own() -> None:
    clock = Clock()
    with pytest.raises(Away):
        _retry(clock, FOREVER).call(Service(clock, 1.0).ask, limit_s=0.0)
    assert clock.pauses == []


def test_an_error_that_is_not_transient_is_raised_at_once() -> None:
    clock = Clock()

    def wrong() -> None:
        raise ValueError("syntax")

    with pytest.raises(ValueError, match="syntax"):
        _retry(clock, FOREVER).call(wrong)
    assert clock.pauses == []


def test_a_process_that_is_told_to_stop_gives_up_two_seconds_later() -> None:
    clock, stop = Clock(), threading.Event()
    service = Service(clock, 3600.0)

    def ask() -> str:
        if clock.now > 100.0:
            stop.set()
        return service.ask()

    with pytest.raises(Away):
        _retry(clock, FOREVER, stop).call(ask)
    assert 100.0 < clock.now <= 104.0


def test_a_process_that_is_told_to_stop_gives_calls_two_seconds_together_not_each() -> None:
    clock, stop = Clock(), threading.Event()
    retry, service = _retry(clock, FOREVER, stop), Service(clock, 3600.0)
    stop.set()
    for _ in range(5):
        with pytest.raises(Away):
            retry.call(service.ask)
    assert clock.now <= 3.0


def test_a_process_that_is_told_to_stop_does_not_repeat_a_try_that_took_long() -> None:
    clock, stop = Clock(), threading.Event()

    def silent() -> None:
        stop.set()
        clock.now += 3.0
        raise Away("no answer")

    with pytest.raises(Away):
        _retry(clock, FOREVER, stop).call(silent)
    assert clock.now == 3.0


def test_a_process_that_is_told_to_stop_still_waits_for_an_outage_that_begins_later() -> None:
    clock, stop = Clock(), threading.Event()
    retry = _retry(clock, FOREVER, stop)
    stop.set()
    with pytest.raises(Away):
        retry.call(Service(clock, 3600.0).ask)
    assert retry.call(Service(clock, 0.0).ask) == "answer"
    clock.now = 100.0
    assert retry.call(Service(clock, 100.01).ask) == "answer"


def test_who_sleeps_is_woken_by_the_stop_event() -> None:
    stop, asked = threading.Event(), threading.Event()
    backoff = Backoff(first_s=3600.0, longest_s=3600.0, stopping_s=0.0)
    retry = Retry("store", lambda _: True, stop=stop, backoff=backoff)

    def away() -> None:
        asked.set()
        raise Away

    ended: list[BaseException] = []

    def wait() -> None:
        try:
            retry.call(away)
        except Away as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert asked.wait(60)
    stop.set()
    thread.join(60)
    assert len(ended) == 1


def test_the_log_says_when_waiting_begins_each_minute_of_it_and_when_it_ends() -> None:
    clock = Clock()
    retry = _retry(clock, FOREVER)
    with capture_logs() as lines:
        retry.call(Service(clock, 150.0).ask)
    assert [line["event"] for line in lines] == [
        "Waiting for a service that is unavailable",
        "Waiting for a service that is unavailable",
        "Waiting for a service that is unavailable",
        "Service is available again",
    ]
    assert all(line["service"] == "store" for line in lines)
    assert lines[0]["error"] == "Away: connection refused"
    assert [line["waited_s"] // 60 for line in lines] == [0, 1, 2, 2]
    with capture_logs() as lines:
        retry.call(Service(clock, 0.0).ask)
    assert lines == []


def test_threads_that_wait_for_one_outage_log_it_once() -> None:
    """The second call finds the service away while the first still waits."""
    clock = Clock()
    retry = _retry(clock, FOREVER)
    service = Service(clock, 10.0)
    inner: list[str] = []

    def outer() -> str:
        if not inner and clock.now > 0:
            inner.append(retry.call(service.ask))
        return service.ask()

    with capture_logs() as lines:
        retry.call(outer)
    assert [line["event"] for line in lines] == [
        "Waiting for a service that is unavailable",
        "Service is available again",
    ]


def test_while_one_call_waits_others_that_succeed_do_not_end_the_outage() -> None:
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        assert retry.call(lambda: "read") == "read"

    backoff = Backoff(clock=lambda: clock.now, sleep=sleep)
    retry = Retry("store", lambda error: isinstance(error, Away), backoff=backoff)
    with capture_logs() as lines:
        assert retry.call(Service(clock, 50.0).ask) == "answer"
    assert [line["event"] for line in lines] == [
        "Waiting for a service that is unavailable",
        "Service is available again",
    ]
    assert retry._away_since is None


def test_calls_that_give_up_soon_are_told_of_in_the_same_way() -> None:
    """As of a process that asks every second, and goes on with what it knew."""
    clock = Clock()
    retry, service = _retry(clock, 0.5), Service(clock, 150.0)
    with capture_logs() as lines:
        while clock.now < 150.0:
            with suppress(Away):
                retry.call(service.ask)
            clock.now += 1.0
        assert retry.call(service.ask) == "answer"
    assert [line["event"] for line in lines] == [
        "Waiting for a service that is unavailable",
        "Waiting for a service that is unavailable",
        "Waiting for a service that is unavailable",
        "Service is available again",
    ]


def test_a_call_that_is_to_wait_for_nothing_says_nothing() -> None:
    clock = Clock()
    with capture_logs() as lines, pytest.raises(Away):
        _retry(clock, FOREVER).call(Service(clock, 1.0).ask, limit_s=0.0)
    assert lines == []


def test_a_limit_may_count_from_the_first_failure() -> None:
    """Of a call that takes a minute to fail."""
    clock = Clock()
    backoff = replace(clock.backoff(), from_failure=True)
    retry = Retry("store", lambda error: isinstance(error, Away), limit_s=20.0, backoff=backoff)

    def slow() -> str:
        clock.now += 60.0
        if clock.now < 100.0:
            raise Away
        return "answer"

    assert retry.call(slow) == "answer"
    with pytest.raises(Away):
        retry.call(Service(clock, 3600.0).ask)


def test_a_silent_retry_leaves_the_telling_to_its_caller() -> None:
    clock = Clock()
    backoff = replace(clock.backoff(), silent=True)
    retry = Retry("x", lambda error: isinstance(error, Away), backoff=backoff)
    with capture_logs() as lines:
        assert retry.call(Service(clock, 150.0).ask) == "answer"
    assert lines == []
