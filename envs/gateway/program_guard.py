"""Guards one program: starts it, reads its output, and stops it with its owner.

    owner ── stdin: open while it lives ─▶ keeper ── item ─▶ program and whatever it starts
          ◀─ stdout: one JSON line, {"code": …, "out": …, "err": …} ──┘

Run as `python -I -S program_guard.py SECONDS ITEM_FD OWN_USER HIDDEN PROGRAM …` at the head of a
session of its own, so it imports nothing of ours. A closed stdin is the end: TERM to the group,
KILL after SECONDS to every process that is left, those that made a session of their own among them
(they are reparented here).

Or as `python -I -S program_guard.py exec HIDDEN PROGRAM …`: it becomes the program, confined as our
own user, for an owner that talks to the program and ends it by itself.

OWN_USER 1, of root alone: the program runs as a user that no other process is, with a HOME of its
own, where we have the rights. A root that stays root loses every capability. HIDDEN: files,
separated by colons, that the program cannot read; nor can it inspect a process that it did not
start (Landlock, where there is).
"""

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

FIRST_USER = 1_000_000  # a program's user: this and its keeper's process id
NO_NEW_PRIVS = 38  # prctl: no exec gains what this process has not; Landlock asks for it
CAPABILITY_VERSION = 0x20080522
CAPABILITIES = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7  # CHOWN, KILL, SETGID, SETUID
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls of Landlock
PATH_BENEATH, READ_FILE, REFER = 1, 1 << 2, 1 << 13
SUBREAPER = 36  # prctl: orphans of the program become children of this process
KEPT = 1 << 20  # bytes of each output, its end
LOOK_S = 0.05  # between looks at the program's end
LINGER_S = 0.2  # for output that stands in a pipe whose program has ended


def main() -> None:
    if sys.argv[1] == "exec":
        _become(sys.argv[3:], sys.argv[2])
    grace_s, item, own_user, hidden = float(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: None)  # a handler, which a program does not inherit
    home = _own_home() if own_user == "1" else ""
    _confine(hidden)
    if not home:
        _drop_capabilities()
    try:
        _run(sys.argv[5:], item, home, grace_s)
    finally:
        if home:
            shutil.rmtree(home, ignore_errors=True)


def _become(argv: "list[str]", hidden: str) -> None:
    """Run the program in place of this process."""
    _confine(hidden)
    _drop_capabilities()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606
    except OSError as error:
        sys.exit(f"{argv[0]}: {error.strerror}")


def _run(argv: "list[str]", item: int, home: str, grace_s: float) -> None:
    """Start the program, and report how it ended.

    `home`: of its own user; empty: run as our user.
    """
    try:
        user = FIRST_USER + os.getpid() if home else None
        program = subprocess.Popen(
            argv,
            stdin=item,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "HOME": home} if home else None,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    except OSError as error:
        _report(127, b"", f"{argv[0]}: {error.strerror}".encode())
        return
    os.close(item)
    out, err = _follow(program)
    code = program.poll()
    _end(grace_s)
    with contextlib.suppress(OSError):  # nobody listens any more
        _report(-signal.SIGKILL if code is None else code, out, err)


def _own_home() -> str:
    """Create a folder for the program's own user; empty: we lack the rights for such a user."""
    with open("/proc/self/status") as status:  # noqa: PTH123
        capabilities = next(
            int(line.split()[1], 16) for line in status if line.startswith("CapEff:")
        )
    home = tempfile.mkdtemp(prefix="agentrl-program-")
    user = FIRST_USER + os.getpid()
    try:
        os.chown(home, user, user)  # some containers have no such user
        if capabilities & CAPABILITIES == CAPABILITIES:
            return home
    except OSError:
        pass
    os.rmdir(home)  # noqa: PTH106
    return ""


def _confine(hidden: str) -> None:
    """Deny this process and its children the hidden files, and access to all earlier processes."""
    libc = ctypes.CDLL(None)
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    version = libc.syscall(CREATE_RULESET, None, 0, 1)
    if version < 1:
        return  # this Linux has no Landlock
    # Landlock denies REFER, moving a file to another folder, unless it is granted as well.
    rights = READ_FILE | (REFER if version > 1 else 0)
    rules = libc.syscall(CREATE_RULESET, struct.pack("=Q", rights), 8, 0)
    secrets = [os.path.realpath(path) for path in hidden.split(":") if path]
    for path in _beside("/", secrets):
        with contextlib.suppress(OSError):  # it went meanwhile
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            libc.syscall(
                ADD_RULE, rules, PATH_BENEATH, struct.pack("=Qi", _granted(path, rights), place), 0
            )
            os.close(place)
    libc.syscall(RESTRICT_SELF, rules, 0)
    os.close(rules)


def _granted(path: str, rights: int) -> int:
    """Return the rights that make sense for a path: nothing can be moved into a file."""
    return rights if os.path.isdir(path) else rights & READ_FILE  # noqa: PTH112


def _drop_capabilities() -> None:
    """Drop those of root for this process and its children; exec does not restore them."""
    if os.getuid() != 0:
        return
    none = bytes(24)  # effective, permitted and inheritable, twice 32 bits each
    ctypes.CDLL(None).capset(struct.pack("=Ii", CAPABILITY_VERSION, 0), none)


def _beside(folder: str, hidden: "list[str]") -> "Iterator[str]":
    """Return the highest paths below a folder that contain no hidden file."""
    if not any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for path in hidden):
        yield folder
        return
    if os.path.isdir(folder):  # noqa: PTH112
        for entry in os.scandir(folder):
            if not entry.is_symlink():  # it would open what it leads to
                yield from _beside(entry.path, hidden)


def _follow(program: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """Read its output until it ends, or until the owner is gone."""
    assert program.stdout  # noqa: S101 - a pipe
    assert program.stderr  # noqa: S101 - a pipe
    outputs = {program.stdout.fileno(): bytearray(), program.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as ready:
        for each in (0, *outputs):
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
                    outputs[key.fd] = (outputs[key.fd] + chunk)[-KEPT:]
            if program.poll() is not None:
                until = min(until, time.monotonic() + LINGER_S)
        while until == float("inf") and program.poll() is None:  # it closed both and goes on
            if ready.select(LOOK_S) and not os.read(0, 1 << 16):
                break
    out, err = (_all(fd, output) for fd, output in outputs.items())
    return out, err


def _all(fd: int, output: bytearray) -> bytes:
    """Return the output with the rest in the pipe, if this process was scheduled too late."""
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        output += os.read(fd, KEPT)
    return bytes(output[-KEPT:])


def _end(grace_s: float) -> None:
    """Kill all processes of the program."""
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
    """Return the live children of this process, and reap dead ones."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    with contextlib.suppress(OSError), open("/proc/self/task/%d/children" % os.getpid()) as listed:  # noqa: PTH123, UP031
        return [int(pid) for pid in listed.read().split()]
    return []


def _report(code: int, out: bytes, err: bytes) -> None:
    texts = {"out": out.decode(errors="replace"), "err": err.decode(errors="replace")}
    print(json.dumps({"code": code, **texts}), flush=True)


if __name__ == "__main__":
    main()
