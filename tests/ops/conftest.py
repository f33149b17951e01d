"""Signals as they were, for tests of what takes them over."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM are given back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
