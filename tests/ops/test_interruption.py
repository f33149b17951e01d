import os
import signal

import pytest

from agentrl.ops.interruption import handle_interruption


def test_a_signal_interrupts_at_once() -> None:
    with handle_interruption(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_within_a_whole_step_waits_for_its_end() -> None:
    done = []

    def step() -> None:
        with interruption.whole():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("step")

    with handle_interruption() as interruption, pytest.raises(KeyboardInterrupt):
        step()
    assert done == ["step"]


def test_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with handle_interruption():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
