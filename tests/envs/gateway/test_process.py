"""A program is gone with its episode, and with whoever plays it."""

import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from running import eventually, processes_of

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.gateway.process import Program, ProgramEnd, confine_command

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()  # out of the group
print("up", flush=True)
open(sys.argv[1], "a").write("x")
time.sleep(60)
"""


def started(tmp_path: Path, ended: Callable[[ProgramEnd], None], text: str) -> Program:
    (tmp_path / "it.py").write_text(text)
    argv = [sys.executable, str(tmp_path / "it.py"), str(tmp_path / "up")]
    return Program(argv, b"{}", {}, ended)


def awaited(what: Callable[[], object]) -> None:
    eventually(what, within_s=60, text=lambda: "never")


def test_its_end_is_told_once_with_code_and_outputs(tmp_path: Path) -> None:
    ends: queue.SimpleQueue[ProgramEnd] = queue.SimpleQueue()
    text = "import sys; print(sys.stdin.read()); print('é', file=sys.stderr); sys.exit(3)"
    program = started(tmp_path, ends.put, text)
    assert ends.get(timeout=60) == ProgramEnd(3, "{}\n", "é\n")
    program.close()
    assert ends.empty()


def test_the_end_of_a_long_output_is_kept(tmp_path: Path) -> None:
    ends: queue.SimpleQueue[ProgramEnd] = queue.SimpleQueue()
    program = started(tmp_path, ends.put, "print('x' * 3_000_000); print('last')")
    out = ends.get(timeout=60).out
    program.close()
    assert len(out) == 1 << 20
    assert out.endswith("x\nlast\n")


def test_a_program_that_closed_its_outputs_is_waited_for(tmp_path: Path) -> None:
    ends: queue.SimpleQueue[ProgramEnd] = queue.SimpleQueue()
    go = tmp_path / "go"
    text = (
        "import os, sys, time\n"
        "os.close(1); os.close(2); open(sys.argv[1], 'w')\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "os._exit(4)"
    )
    program = started(tmp_path, ends.put, text)
    awaited((tmp_path / "up").exists)
    assert ends.empty()
    go.touch()
    assert ends.get(timeout=60).code == 4
    program.close()


def test_a_program_that_does_not_exist_is_told_by_name(tmp_path: Path) -> None:
    ends: queue.SimpleQueue[ProgramEnd] = queue.SimpleQueue()
    program = Program([str(tmp_path / "no")], b"{}", {}, ends.put)
    assert "No such file" in ends.get(timeout=60).err
    program.close()


def test_an_environment_that_no_process_can_have_is_no_reward(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="too long"):
        Program(["true"], b"{}", {"BIG": "x" * 200_000}, lambda _: None)


def test_what_ignores_its_end_and_left_its_group_is_killed(tmp_path: Path) -> None:
    program = started(tmp_path, lambda _: None, STUBBORN)
    awaited((tmp_path / "up").exists)
    assert len(processes_of(tmp_path)) >= 2
    program.close()
    awaited(lambda: not processes_of(tmp_path))


def test_what_a_program_leaves_behind_goes_when_it_ends(tmp_path: Path) -> None:
    ends: queue.SimpleQueue[ProgramEnd] = queue.SimpleQueue()
    text = f"import os, time\nif os.fork() == 0:\n    time.sleep(60)\nprint({str(tmp_path)!r})"
    program = started(tmp_path, ends.put, text)
    assert ends.get(timeout=60).code == 0
    awaited(lambda: not processes_of(tmp_path))
    program.close()


PRYING = """
owner=$(awk '/^PPid/ {print $2}' /proc/$PPID/status)
cat /dev/stdin
tr '\\0' '\\n' < /proc/$owner/environ | grep HUSH
cat "$1" && echo read it
head -n 1 /proc/$owner/maps
id -u
"""
OWNER = """
import queue, sys
from agentrl.envs.gateway.process import Program
ends = queue.SimpleQueue()
argv = ["/bin/sh", "-c", sys.argv[2], "sh", sys.argv[3]]
program = Program(argv, b"the item ", {}, ends.put, own_user=sys.argv[1] == "own")
print(ends.get(timeout=60).out, end="")
program.close()
"""


def _environment_with_secrets(file: Path) -> dict[str, str]:
    """What an owner's process has: a secret in a variable, and one in a file."""
    needed = {name: os.environ[name] for name in ("PATH", "PYTHONPATH")}
    return needed | {"HUSH": "quiet", "HUSH_TOKEN_FILE": str(file)}


@pytest.mark.parametrize("own_user", ["own", "same"])
def test_a_program_reads_neither_its_owner_s_environment_nor_a_file_of_a_secret(
    own_user: str,
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        secret = Path(name) / "hush"
        secret.write_text("hush")
        ended = subprocess.run(
            [sys.executable, "-c", OWNER, own_user, PRYING, str(secret)],
            cwd="/",
            env=_environment_with_secrets(secret),
            capture_output=True,
            text=True,
            check=True,
        )
    stands, user = ended.stdout.split()[:2], ended.stdout.split()[2]
    assert (stands, len(ended.stdout.split())) == (["the", "item"], 3), "and nothing else"
    assert (user == str(os.getuid())) == (own_user == "same" or os.getuid() != 0)


def test_a_confined_command_talks_to_its_owner_and_reads_none_of_its_secrets() -> None:
    owner = (
        "import subprocess, sys; from agentrl.envs.gateway.process import confine_command; "
        "sys.exit(subprocess.run(confine_command(sys.argv[1:])).returncode)"
    )
    prying = """
cat /dev/stdin
tr '\\0' '\\n' < /proc/$PPID/environ | grep HUSH
head -n 1 /proc/$PPID/maps
cat "$1" && echo read it
grep CapEff /proc/self/status
exit 7
"""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        secret = Path(name) / "hush"
        secret.write_text("hush")
        ended = subprocess.run(
            [sys.executable, "-c", owner, "/bin/sh", "-c", prying, "sh", str(secret)],
            input="the item",
            env=_environment_with_secrets(secret),
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 7
    assert ended.stdout.split() == ["the", "itemCapEff:", "0" * 16]


@pytest.mark.parametrize("hides", [True, False])
def test_a_confined_command_moves_files_between_folders(
    tmp_path: Path, hides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hides:
        monkeypatch.setenv("HUSH_TOKEN_FILE", str(tmp_path / "hush"))
        (tmp_path / "hush").write_text("hush")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "file").write_text("text")
    move = f"import os; os.chdir({str(tmp_path)!r}); os.rename('a/file', 'b/file')"
    ended = subprocess.run(
        confine_command([sys.executable, "-c", move]), capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_confined_command_that_does_not_exist_is_one_line() -> None:
    ended = subprocess.run(
        confine_command(["/no/such"]), capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (1, "/no/such: No such file or directory\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_dies_with_its_owner(tmp_path: Path, number: int) -> None:
    (tmp_path / "it.py").write_text(STUBBORN)
    owner = (
        "import sys, time\n"
        "from agentrl.envs.gateway.process import Program\n"
        "Program(sys.argv[1:], b'{}', {}, lambda _: None)\n"
        "time.sleep(60)"
    )
    argv = [sys.executable, str(tmp_path / "it.py"), str(tmp_path / "up")]
    process = subprocess.Popen([sys.executable, "-c", owner, *argv])
    awaited((tmp_path / "up").exists)
    os.kill(process.pid, number)
    process.wait()
    awaited(lambda: not processes_of(tmp_path))
