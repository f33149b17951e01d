"""Keeps one program: starts it, reads what it prints, and ends all of it with its owner.

    owner ── stdin: open while it lives ─▶ keeper ── item ─▶ program and whatever it starts
          ◀─ stdout: one JSON line, {"code": …, "out": …, "err": …} ──┘

Run as `python -I -S keeper.py SECONDS ITEM_FD PROGRAM …` at the head of a session of its own, so it
imports nothing of ours. A closed stdin is the end: TERM to the group, KILL after SECONDS to every
process that is left, those that made a session of their own among them (they are reparented here).
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time

SUBREAPER = 36  # prctl: orphans of the program become children of this process
KEPT = 1 << 20  # bytes of each output, its end
LOOK_S = 0.05  # between looks at the program's end
LINGER_S = 0.2  # for output that stands in a pipe whose program has ended


def main() -> None:
    grace_s, item, argv = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: None)  # a handler, which a program does not inherit
    try:
        program = subprocess.Popen(
            argv, stdin=item, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
    except OSError as error:
        _tell(127, b"", f"{argv[0]}: {error.strerror}".encode())
        return
    os.close(item)
    out, err = _follow(program)
    code = program.poll()
    _end(grace_s)
    with contextlib.suppress(OSError):  # nobody listens any more
        _tell(-signal.SIGKILL if code is None else code, out, err)


def _follow(program: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """What it prints until it ends, or until the owner is gone."""
    assert program.stdout  # noqa: S101 - a pipe
    assert program.stderr  # noqa: S101 - a pipe
    kept = {program.stdout.fileno(): bytearray(), program.stderr.fileno(): bytearray()}
    outputs = tuple(kept)
    with selectors.DefaultSelector() as ready:
        for each in (0, *kept):
            ready.register(each, selectors.EVENT_READ)
        until = float("inf")
        while time.monotonic() < until and len(ready.get_map()) > 1:
            for key, _ in ready.select(LOOK_S):
                chunk = os.read(key.fd, 1 << 16)
                if key.fd == 0 and not chunk:
                    until = 0.0
                elif not chunk:
                    ready.unregister(key.fd)
                elif key.fd:
                    kept[key.fd] = (kept[key.fd] + chunk)[-KEPT:]
            if program.poll() is not None:
                until = min(until, time.monotonic() + LINGER_S)
        while until == float("inf") and program.poll() is None:  # it closed both and goes on
            if ready.select(LOOK_S) and not os.read(0, 1 << 16):
                break
    out, err = (_all(fd, kept[fd]) for fd in outputs)
    return out, err


def _all(fd: int, kept: bytearray) -> bytes:
    """With what stands in the pipe still, where this process came to its turn too late."""
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        kept += os.read(fd, KEPT)
    return bytes(kept[-KEPT:])


def _end(grace_s: float) -> None:
    """No process of the program is left."""
    deadline = time.monotonic() + grace_s
    os.killpg(0, signal.SIGTERM)
    while _children() and time.monotonic() < deadline:
        time.sleep(0.01)
    while left := _children():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _children() -> list[int]:
    """Those of this process that live; the dead are buried."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    with contextlib.suppress(OSError), open("/proc/self/task/%d/children" % os.getpid()) as listed:  # noqa: PTH123, UP031
        return [int(pid) for pid in listed.read().split()]
    return []


def _tell(code: int, out: bytes, err: bytes) -> None:
    texts = {"out": out.decode(errors="replace"), "err": err.decode(errors="replace")}
    print(json.dumps({"code": code, **texts}), flush=True)


if __name__ == "__main__":
    main()
