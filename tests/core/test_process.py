import ctypes
import os
from pathlib import Path

import pytest

from core.process import session_nice, weigh_session

PR_SET_DUMPABLE, NOBODY = 4, 65534


@pytest.mark.skipif(session_nice() is None, reason="Linux weighs no sessions here")
@pytest.mark.skipif(os.getuid() != 0, reason="root, who can become nobody")
def test_a_session_is_weighed_though_linux_asks_to_try_again() -> None:
    """To nobody it grants one wish in 100 ms."""
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setsid()
            os.setuid(NOBODY)
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # /proc/self is its own again
            for nice in (3, 5, 7):
                weigh_session(nice)
            code = session_nice() != 7
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_session_that_cannot_be_weighed_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    if session_nice() is None:
        pytest.skip("Linux weighs no sessions here")
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    weigh_session(5, child)  # which is gone
    assert "session is not weighed" in "".join(capsys.readouterr())
    assert Path("/proc/self/autogroup").exists()
