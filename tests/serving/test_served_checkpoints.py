"""The registry of what a server answers for."""

import threading

import pytest

from agentrl.serving.served_checkpoints import NotServedError, ServedCheckpoint, ServedCheckpoints


def test_a_request_is_held_until_it_ends_and_retiring_waits_for_it() -> None:
    served = ServedCheckpoints()
    served.serve("current", "a", 1)
    entered, leave = threading.Event(), threading.Event()

    def request() -> None:
        with served.request("a"):
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=request)
    thread.start()
    assert entered.wait(60)
    assert not served.retire("a", timeout_s=0.05)
    threading.Timer(0.1, leave.set).start()
    assert served.retire("a", timeout_s=60)
    thread.join()


def test_a_retired_checkpoint_is_refused_while_its_requests_finish() -> None:
    served = ServedCheckpoints()
    served.serve("current", "a", 1)
    with served.request("a"):
        assert not served.retire("a", timeout_s=0)
        with pytest.raises(NotServedError, match="checkpoint a"), served.request("a"):
            pass
    assert served.retire("a", timeout_s=0)


def test_a_track_moves_and_its_former_checkpoint_stays_open_until_retired() -> None:
    served = ServedCheckpoints()
    served.serve("current", "a", 1)
    served.serve("lagged(4)", "a", 1)
    served.serve("current", "b", 2)
    assert served.tracks() == {
        "current": ServedCheckpoint("b", 2),
        "lagged(4)": ServedCheckpoint("a", 1),
    }
    assert served.checkpoints() == ["a", "b"]
    served.retire("a", timeout_s=0)
    assert served.tracks() == {"current": ServedCheckpoint("b", 2)}
    with served.request("b"):
        pass


def test_a_request_that_fails_is_let_go() -> None:
    served = ServedCheckpoints()
    served.serve("current", "a", 1)
    with pytest.raises(RuntimeError), served.request("a"):
        raise RuntimeError
    assert served.retire("a", timeout_s=0)


def test_closing_refuses_everything_and_waits_within_its_bound() -> None:
    served = ServedCheckpoints()
    served.serve("current", "a", 1)
    served.serve("lagged(1)", "b", 1)
    with served.request("b"):
        assert not served.close(timeout_s=0.05)
    assert served.close(timeout_s=0)
    for name in "ab":
        with pytest.raises(NotServedError), served.request(name):
            pass
