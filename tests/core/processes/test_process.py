import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.core.processes.process import (
    agentrl_command,
    has_ended,
    process_began,
    session_nice,
    set_session_nice,
)

ROOT = Path(__file__).parents[3]
NOBODY = 65534
WEIGH = f"""
import os
from agentrl.core.processes.process import session_nice, set_session_nice
os.setuid({NOBODY})  # Linux forbids inspection then: /proc/self is root's
for nice in (3, 5, 7):
    set_session_nice(nice)
assert session_nice() == 7, session_nice()
"""

INSPECT = f"""
import ctypes, os
from agentrl.core.processes.process import forbid_inspection
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as a process that nobody started as root
def read_by_another():
    told, tells = os.pipe()
    if os.fork() == 0:
        try:
            for name in ("environ", "mem", "fd/0"):
                os.close(os.open(f"/proc/{{os.getppid()}}/{{name}}", os.O_RDONLY))
            os.write(tells, b"open")
        except PermissionError:
            os.write(tells, b"shut")
        os._exit(0)
    return os.read(told, 4)
print(read_by_another())
forbid_inspection()
print(read_by_another(), open("/proc/self/fd/0") and "its own")
"""

weighs = pytest.mark.skipif(session_nice() is None, reason="Linux weighs no sessions here")


@pytest.mark.skipif(os.getuid() != 0, reason="root, who can become nobody")
def test_no_process_of_the_same_user_reads_what_forbids_inspection() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INSPECT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.stdout.splitlines() == ["b'open'", "b'shut' its own"], ended.stderr


@weighs
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


@weighs
def test_a_session_that_cannot_be_weighed_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    set_session_nice(5, gone.pid)
    assert "CPU weight of the session not set" in "".join(capsys.readouterr())


def test_a_folder_where_a_command_starts_shadows_no_module(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit('shadowed')")
    ended = subprocess.run(
        agentrl_command("--help"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "agentrl" in ended.stdout


@pytest.mark.parametrize("hidden", [False, True])
def test_a_process_that_linux_hides_has_not_ended_before_its_pid_is_free(
    tmp_path: Path, *, hidden: bool
) -> None:
    proc = tmp_path if hidden else Path("/proc")  # mounted with hidepid it shows no other process
    with subprocess.Popen(["sleep", "60"]) as process:
        began = process_began(process.pid)
        assert began is not None
        assert not has_ended(process.pid, began, proc)
        assert has_ended(process.pid, began + 1, proc) is not hidden, "a pid used again"
        process.kill()
    assert has_ended(process.pid, began, proc)


def test_no_process_has_a_pid_that_is_too_large() -> None:
    assert has_ended(10**30, 0)
