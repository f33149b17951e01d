import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.process import session_nice, weigh_session

ROOT = Path(__file__).parents[2]
NOBODY = 65534
WEIGH = f"""
import ctypes, os
from core.process import session_nice, weigh_session
os.setuid({NOBODY})
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: /proc/self is its own again
for nice in (3, 5, 7):
    weigh_session(nice)
assert session_nice() == 7, session_nice()
"""

pytestmark = pytest.mark.skipif(session_nice() is None, reason="Linux weighs no sessions here")


@pytest.mark.skipif(os.getuid() != 0, reason="root, who can become nobody")
def test_a_session_is_weighed_though_linux_asks_to_try_again() -> None:
    """To nobody it grants one wish in 100 ms."""
    ended = subprocess.run(
        [sys.executable, "-c", WEIGH],
        cwd=ROOT,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    if "PermissionError" in ended.stderr:
        pytest.skip("root that cannot become nobody")
    assert ended.returncode == 0, ended.stderr


def test_a_session_that_cannot_be_weighed_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    weigh_session(5, gone.pid)
    assert "session is not weighed" in "".join(capsys.readouterr())
