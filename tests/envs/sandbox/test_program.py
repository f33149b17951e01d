"""What a sandbox begins with, as a process of the test's own."""

import subprocess
import sys

from agentrl.envs.sandbox.program import BOOT, python_program


def begun(length: int, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-I", "-c", BOOT, str(length)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=200)


def test_a_program_runs_once_it_is_whole() -> None:
    program = python_program(
        "agentrl.envs.tasks.dbbench.databases.sandbox_main",
        ("agentrl.core.errors", "agentrl.envs.tasks.dbbench.scoring"),
    )
    assert f"{len(program.stdin)}" in program.argv
    ended = begun(len(program.stdin), program.stdin)
    assert b"No module named" in ended.stderr  # it got as far as its own imports


def test_a_server_that_goes_while_it_sends_leaves_no_process_behind() -> None:
    ended = begun(1000, b"half of it")
    assert ended.returncode == 1
    assert b"hung up on before the program was whole" in ended.stderr
