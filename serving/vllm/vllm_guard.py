"""Runs between a policy server and its vLLM, so that vLLM never outlives the server.

    policy server ── stdin, held open ──▶ guard ── child, death signal ──▶ vLLM and its processes

    python vllm_guard.py FOLDER COMMAND …

When its stdin closes (the policy server ended) or vLLM ends, the guard kills the rest of its
process group and removes FOLDER. It imports none of our modules and has one thread, so it may fork.
Python's resource trackers are killed last, because they remove shared memory.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TERM_S, KILL_S = 3.0, 1.0  # for vLLM to end by itself, for its shared memory to be removed
LOOK_S = 0.2
PR_SET_PDEATHSIG = 1


def main(folder: str, command: Sequence[str]) -> int:
    """Run the command until it ends or stdin closes. Returns its exit code; 0 if we ended it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # comes back to us when we send it to the group
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's: the policy server drains first
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_follow)  # noqa: PLW1509
    has_owner = True
    while has_owner and child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], LOOK_S)
        has_owner = not readable or bool(os.read(sys.stdin.fileno(), 1))
    code = child.poll()
    _end(child)
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if code is None else abs(code)


def _follow() -> None:
    """In the child: die with the guard, and reset the signals that it ignores."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(child: "subprocess.Popen[bytes]") -> None:
    os.killpg(0, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(TERM_S)
    _kill([pid for pid, words in _members() if b"resource_tracker" not in words])
    child.wait()
    deadline = time.monotonic() + KILL_S
    while _members() and time.monotonic() < deadline:
        time.sleep(0.02)
    _kill([pid for pid, _ in _members()])


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _members() -> list[tuple[int, bytes]]:
    """Return the other live processes of this group with their command lines."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(group) == os.getpgrp() and state != "Z":
            members.append((int(entry.name), words))
    return members


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
