"""What ends or delays the use of an API: its budget, its URL, its Retry-After."""

import email.utils
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentrl.core.config.sections.policies import External
from agentrl.core.errors import ConfigError
from agentrl.serving.external.upstream import Budget, BudgetSpent, require_key, retry_after


def budget(spent: tuple[int, int] = (0, 0), **limits: Any) -> Budget:
    config = External(url="http://h/v1", model="m", **limits)
    return Budget(config, spent, lambda _requests, _tokens: None)


def test_a_budget_of_requests_counts_those_of_before() -> None:
    found = budget(spent=(3, 0), max_requests=4)
    found.take()
    with pytest.raises(BudgetSpent, match="all 4 are spent"):
        found.take()


def test_a_budget_of_tokens_ends_with_the_answer_that_reaches_it() -> None:
    found = budget(max_tokens=14)
    for _ in range(2):
        found.take()
        found.add(7)
    with pytest.raises(BudgetSpent, match="all 14 are spent"):
        found.take()


def test_a_budget_that_was_spent_before_is_closed_from_the_start() -> None:
    assert "all 5 are spent" in budget(spent=(1, 5), max_tokens=5).closed


def test_many_threads_never_take_more_than_the_budget() -> None:
    found = budget(max_requests=5)
    with ThreadPoolExecutor(20) as threads:
        tries = [threads.submit(found.take) for _ in range(20)]
    assert sum(each.exception() is None for each in tries) == 5


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
