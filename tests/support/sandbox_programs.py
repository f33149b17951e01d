"""Programs that run in sandboxes, and a sandbox or a pool for as long as a test needs it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import msgspec

from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.program import OS, Program, SandboxLimits
from agentrl.envs.sandbox.sandbox import Sandbox, Sandboxes, Spec

PYTHON = """
import os, sys
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""
# Limits and kills as a driver of a root profile has to: it is PID 1, its children die before it.
SHELL = """
import json, os, signal, subprocess, sys
def fragile():
    os.setsid()
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
for line in sys.stdin:
    script, seconds = json.loads(line)
    child = subprocess.Popen(["bash", "-c", script], stdin=subprocess.DEVNULL, preexec_fn=fragile,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(-1, signal.SIGKILL))
    signal.alarm(seconds)
    kept = bytearray()
    while chunk := child.stdout.read1(65536):
        kept += chunk[: 800 - len(kept)]
    code = child.wait()
    signal.alarm(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    print(json.dumps([code, kept.decode(errors="replace")]), flush=True)
"""
SMALL = SandboxLimits(memory_bytes=48 << 20, cpus=0.5, pids=16, tmpfs_bytes=1 << 20)
SMALL_OS = replace(OS, memory_bytes=128 << 20, disk_bytes=64 << 20)


def python(text: str = PYTHON) -> Program:
    """By itself it evaluates each line."""
    return Program(("python3", "-I", "-c", text))


@contextmanager
def sandbox(engine: Engine, image: str, program: Program | None = None) -> Iterator[Sandbox]:
    made = Sandbox(engine, Spec(image, program or python(), SMALL))
    try:
        yield made
    finally:
        made.close()


@contextmanager
def root_pool(engine: Engine, image: str, limits: SandboxLimits = SMALL_OS) -> Iterator[Sandboxes]:
    """Of shells as root, each for one episode."""
    spec = Spec(image, python(SHELL), limits, reuse=1)
    with closing(Sandboxes(engine, spec)) as pool:
        yield pool


def ask(sandbox: Sandbox, line: str, timeout_s: float = 60.0) -> str:
    return sandbox.channel.ask(line.encode(), timeout_s).decode()


def run(sandbox: Sandbox, script: str, seconds: int = 20) -> tuple[int, str]:
    """A root shell's exit code and the first 800 bytes it said; -9 where it was killed."""
    line = msgspec.json.encode([script, seconds])
    return msgspec.json.decode(sandbox.channel.ask(line, seconds + 10), type=tuple[int, str])
