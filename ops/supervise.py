"""Keeps the processes of a run alive on one machine, and ends them cleanly.

    supervisor ─▶ policy servers · recorder · trainer · worker(s) · dispatcher

A process that ends while the run goes on is started again with back-off. One that ends with 2
before it ever stood, or is down for ten minutes, has met something a person must mend: the
supervisor stops and says what it said. A lock on the home makes the supervisor one.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from core import metrics
from core.config import Config
from core.errors import AgentRLError
from core.process import process_began
from ops import ending
from ops.hosts import hosts_envs
from ops.process import SUPERVISOR

STOP_S = (5.0, 4.5)  # between SIGTERM and SIGKILL, for those who ask and those who answer
ROOM = "make room there; the same command goes on"
LAST_BODIES_S = 60.0  # the recorder's instead, once the run is over
MEND = 2  # exit code of a clear error, which no restart mends where the process never stood
REPLACED = 3  # exit code of one that another process of the run has replaced: no restart, ever

RECORDER, TRAINER = "recorder", "trainer"
EVALUATOR, TRACK = "evaluator", "track"  # the run goes on without them


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. A process that lived `steady_s` has stood, and starts its back-off anew."""

    back_off_s: Sequence[float] = (0.5, 1.0, 2.0, 5.0, 10.0)
    steady_s: float = 15.0
    give_up_s: float = 600.0  # of deaths without standing again


@dataclass(slots=True)
class Child:
    """A supervised process. `deaths`: since it last stood; `failing_since`: the first of them."""

    name: str
    command: Sequence[str]
    phase: int
    metrics: int = 0  # the port of its metrics, 0 for none
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    deaths: int = 0
    failing_since: float = 0.0
    code: int = 0
    restarts: int = 0
    done: bool = False
    needed: bool = True
    stood: bool = False
    due: float = field(default=0.0)


def children(config: Config, path: Path) -> list[Child]:
    """What `agentrl up` starts."""

    def child(name: str, *arguments: str, phase: int) -> Child:
        command = [sys.executable, "-m", "cli.main", *arguments, "--supervised"]
        return Child(name, command, phase, needed=name not in (EVALUATOR, TRACK))

    file = str(path)
    servers = [
        child(f"policy-{server.name}", "policy", file, "--name", server.name, phase=1)
        for server in config.policy_servers()
    ]
    envs = [child("envs", "envs", "serve", file, phase=1)] if hosts_envs(config) else []
    evaluators = [child(EVALUATOR, "evaluator", file, phase=0)] if config.eval.every else []
    workers = [child(f"worker-{n}", "worker", file, phase=0) for n in range(config.workers)]
    found = [
        *servers,
        *envs,
        child(RECORDER, "recorder", file, phase=1),
        child(TRAINER, TRAINER, file, phase=0),
        *workers,
        *evaluators,
        child("dispatcher", "dispatcher", file, phase=0),
        *([child(TRACK, "track", file, phase=1)] if config.trackers.use else []),
    ]
    for port, each in enumerate(found if config.metrics.port else (), config.metrics.port + 1):
        each.metrics = port  # after the supervisor's own
    return found


class Supervisor:
    """Owns the children; used by one thread, which must live as long as they do."""

    def __init__(
        self,
        home: Path,
        all_children: Sequence[Child],
        tell: Callable[[str], None],
        pace: Pace | None = None,
    ) -> None:
        """`tell`: called with one line for every process that starts again."""
        self._home = home
        self._children = all_children
        self._tell = tell
        self._pace = pace or Pace()
        self._lock: IO[bytes] | None = None
        self._over = False
        (home / "logs").mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start every child. Raises AgentRLError if another supervisor runs here."""
        self._lock = _only_one(self._home)
        for child in self._children:
            self._launch(child)
        self._write()

    def poll(self) -> None:
        """Start again what died. Raises AgentRLError with the words of one that cannot go on."""
        for child in self._children:
            if child.process is None:
                if not child.done and time.monotonic() >= child.due:
                    words = ending.last_line(self._log_file(child))
                    self._tell(f"{child.name} {ending.restarted(child.code, words)}")
                    child.restarts += 1
                    metrics.RESTARTS.add(name=child.name)
                    self._launch(child)
                    self._write()
                continue
            code = child.process.poll()
            if code is not None:
                self._ended(child, code)
        metrics.PROCESSES.set(len(self.pids()))

    def run_is_over(self) -> None:
        """From now on a child that ends with 0 has done its work."""
        self._over = True
        for child in self._children:
            child.done = child.done or (child.process is None and child.code == 0)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL, phase by phase: who asks ends before who answers."""
        if self._lock is None:
            return
        for phase in sorted({child.phase for child in self._children}):
            chosen = [child for child in self._children if child.phase == phase]
            for child in chosen:
                child.done = True
                if child.process is not None:
                    child.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            for child in sorted(chosen, key=self._patience):
                patience = self._patience(child)
                if not _await_end(child, began + patience):
                    loses = child.name == TRAINER and not self._over
                    redone = "; what it had not saved is done again" if loses else ""
                    self._tell(f"{child.name} did not end in {patience:g} s, was killed{redone}")
        (self._home / "processes.json").unlink(missing_ok=True)
        self._lock.close()
        self._lock = None

    def pids(self) -> dict[str, int]:
        """The live children."""
        return {c.name: c.process.pid for c in self._children if c.process is not None}

    def _patience(self, child: Child) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        return LAST_BODIES_S if self._over and child.name == RECORDER else STOP_S[child.phase]

    def _launch(self, child: Child) -> None:
        environment = os.environ | {
            SUPERVISOR: str(os.getpid()),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if child.metrics:
            environment["AGENTRL__METRICS__PORT"] = str(child.metrics)
        with self._log_file(child).open("ab") as output:
            child.process = subprocess.Popen(
                child.command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        child.started = time.monotonic()

    def _ended(self, child: Child, code: int) -> None:
        """One that has stood is started again however it ends: a store may be away for long."""
        ended, pace = time.monotonic(), self._pace
        child.process, child.code = None, code
        if ended - child.started > pace.steady_s:
            child.stood, child.deaths = True, 0
        if code == 0 and self._over:
            child.done = True
            self._write()
            return
        if child.deaths == 0:
            child.failing_since = ended
        words = ending.last_line(self._log_file(child))
        tries = len(pace.back_off_s)
        often = child.deaths >= tries and not child.stood
        if code == REPLACED or (code == MEND and not child.stood):
            self._given_up(child, f"{child.name}: {words.removeprefix('agentrl: ')}")
        elif often or ended - child.failing_since > pace.give_up_s:
            mend = f"see {self._log_file(child)}"
            words = ending.cause(code, words)
            self._given_up(child, f"{child.name} dies again and again: {words}", mend)
        child.due = ended + pace.back_off_s[min(child.deaths, tries - 1)]
        child.deaths += 1
        self._write()

    def _given_up(self, child: Child, words: str, mend: str = "") -> None:
        """Go on without a child that is not needed. Raises AgentRLError for any other."""
        if child.needed:
            raise AgentRLError(words, mend=mend)
        self._tell(f"{words}; the run goes on without it")
        child.done = True

    def _log_file(self, child: Child) -> Path:
        return self._home / "logs" / f"{child.name}.log"

    def _write(self) -> None:
        """processes.json, whole or not: what `status` and `down` read. Raises AgentRLError."""
        state = {
            "supervisor": os.getpid(),
            "began": process_began(os.getpid()),
            "processes": {
                child.name: {
                    "pid": child.process.pid if child.process else None,
                    "restarts": child.restarts,
                    "done": child.done,
                    "metrics": child.metrics,
                }
                for child in self._children
            },
        }
        partial = self._home / "processes.json.partial"
        try:
            partial.write_text(json.dumps(state, indent=1))
            partial.replace(self._home / "processes.json")
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise AgentRLError(f"{self._home}: {error.strerror}", mend=ROOM) from error


def _await_end(child: Child, deadline: float) -> bool:
    """Whether a child ended by itself; it is killed at the deadline (monotonic seconds)."""
    if child.process is None:
        return True
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.process.wait(max(0.1, deadline - time.monotonic()))
    if late := child.process.poll() is None:
        child.process.kill()
        child.process.wait()
    child.process = None
    return not late


def _only_one(home: Path) -> IO[bytes]:
    """A lock on the home until it is closed or its process ends. Raises AgentRLError."""
    lock = (home / "supervisor.lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        refuse_second(home)
        raise AgentRLError(f"a supervisor begins or ends in {home}", mend="try again") from None
    return lock


def refuse_second(home: Path) -> None:
    """Raise AgentRLError where a supervisor runs."""
    if (other := running_supervisor(home)) is not None:
        raise AgentRLError(
            f"a supervisor (pid {other}) runs in {home} already", mend="agentrl down CONFIG"
        )


def running_supervisor(home: Path) -> int | None:
    """The pid of the supervisor of a home, if it still runs."""
    try:
        state = json.loads((home / "processes.json").read_text())
    except (OSError, ValueError):
        return None
    pid = int(state["supervisor"])
    return pid if process_began(pid) == state["began"] else None
