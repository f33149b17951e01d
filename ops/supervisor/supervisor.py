"""Keeps the processes of a run alive on one machine, and ends them cleanly.

    supervisor ─▶ policy servers · recorder · trainer · worker(s) · dispatcher

A process that ends while the run goes on is started again with back-off. One that ends with 2
before it ever stood, or dies again and again without progress of the run, has met something a
person must correct: the supervisor stops and says what it said. One that a service or a disk keeps
waiting is started again for ever. A lock on the home makes the supervisor one.

A trainer that shares a card with a vLLM server starts once that serves: vLLM measures the card at
its start, and fails if other processes allocate memory meanwhile.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from agentrl.core import disk_errors
from agentrl.core.errors import AgentRLError
from agentrl.core.processes.process import SUPERVISOR, Instance, process_began
from agentrl.core.telemetry import metrics
from agentrl.ops.supervisor import exit_reasons
from agentrl.ops.supervisor.children import RECORDER, STOP_S, TRAINER, Child
from agentrl.ops.supervisor.locks import only_one
from agentrl.ops.supervisor.logfiles import rotate, start_process
from agentrl.ops.supervisor.restarts import AWAY, NEEDS_A_PERSON, REPLACED, Pace

ROTATE_S = 10.0  # between two looks at the size of the logs
ROOM = "free space there and run the same command to continue"
LAST_BODIES_S = 60.0  # the recorder's instead, once the run is over

PACE = Pace()

ProgressOf = Callable[[str], int | None]  # how far the run is, for a child's name


def _anywhere(_name: str) -> int | None:
    return 0


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a supervisor.

    `progress_of`: returns the run's progress, asked when a child dies; `serves`: whether the policy
    server of that name serves; `log_bytes`: size at which a log is moved aside.
    """

    pace: Pace = PACE
    progress_of: ProgressOf = _anywhere
    serves: Callable[[str], bool] = bool
    log_bytes: int = 64 * 1024**2
    clock: Callable[[], float] = time.monotonic


class Supervisor:
    """Owns the children; used by one thread, which must live as long as they do."""

    def __init__(
        self,
        home: Path,
        run: str,
        all_children: Sequence[Child],
        tell: Callable[[str], None],
        settings: Settings = Settings(),
    ) -> None:
        """`run`: its name. `tell`: called with one line for every process that starts again."""
        self._home, self._run = home, run
        self._children = all_children
        self._tell = tell
        self._pace, self._progress_of = settings.pace, settings.progress_of
        self._serves = settings.serves
        self._clock, self._log_bytes = settings.clock, settings.log_bytes
        self._rotated_at = -math.inf
        self._lock: IO[bytes] | None = None
        self._over = False
        self._written: dict[str, Any] = {}
        self._is_unwritten = False
        (home / "logs").mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start every child that waits for no other.

        Raises AgentRLError if another supervisor runs here, or the disk takes no file.
        """
        self._lock = only_one(self._home)
        for child in self._children:
            if child.after:
                self._tell(
                    f"{child.name} starts once these policies are served: {', '.join(child.after)}"
                )
            else:
                self._launch(child)
        self._write()

    def poll(self) -> None:
        """Start again what died. Raises AgentRLError with the words of one that cannot go on."""
        self._rotate()
        for child in self._children:
            if child.process is None:
                if child.after:
                    self._launch_after(child)
                elif not child.done and self._clock() >= child.due:
                    self._restart(child)
                continue
            code = child.process.poll()
            if code is not None:
                self._handle_exit(child, code)
        self._write_later()
        metrics.PROCESSES.set(len(self.pids()))

    def _launch_after(self, child: Child) -> None:
        """Start a child for the first time if the policy servers it waits for serve."""
        if not child.done and all(map(self._serves, child.after)):
            child.after = ()
            self._launch(child)

    def _restart(self, child: Child) -> None:
        if child.code != AWAY:
            words = exit_reasons.last_line(self._log_file(child))
            self._tell(f"{child.name} {exit_reasons.restart_line(child.code, words)}")
        child.restarts += 1
        metrics.RESTARTS.labels(name=child.name).inc()
        self._launch(child)

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
                self._await_end(child, began, self._patience(child))
        with contextlib.suppress(OSError):  # a file of a supervisor that has ended says nothing
            (self._home / "processes.json").unlink(missing_ok=True)
        self._lock.close()
        self._lock = None

    def pids(self) -> dict[str, int]:
        """The live children."""
        return {c.name: c.process.pid for c in self._children if c.process is not None}

    def _patience(self, child: Child) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        return LAST_BODIES_S if self._over and child.name == RECORDER else child.stop_s

    def _await_end(self, child: Child, began: float, patience: float) -> None:
        """Wait until it has ended by itself; it is killed so long after `began` (monotonic)."""
        if child.process is None:
            return
        soon = min(patience, STOP_S)
        if not _ends(child.process, began + soon) and patience > soon:
            self._tell(f"{child.name} is stopping; it has {patience - soon:g} s left")
        if not _ends(child.process, began + patience):
            child.process.kill()
            child.process.wait()
            loses = child.name == TRAINER and not self._over
            redone = "; updates since its last snapshot will be trained again" if loses else ""
            self._tell(f"{child.name} did not stop within {patience:g} s and was killed{redone}")
        child.process = None

    def _rotate(self) -> None:
        """Bound the logs, now and then."""
        if self._clock() - self._rotated_at >= ROTATE_S:
            rotate(self._home / "logs", self._log_bytes)
            self._rotated_at = self._clock()

    def _launch(self, child: Child) -> None:
        """Start a child, later where the disk takes no log. Raises AgentRLError."""
        instance = Instance(former=child.instance.name if child.instance else "")
        environment = os.environ | instance.environment()
        environment |= {
            SUPERVISOR: str(os.getpid()),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if child.metrics:
            environment["AGENTRL__METRICS__PORT"] = str(child.metrics)
        try:
            child.process = start_process(child.command, self._log_file(child), environment)
        except OSError as error:
            if not disk_errors.is_transient(error.errno):
                raise AgentRLError(f"{child.name} cannot be started: {error}") from error
            child.code = AWAY
            self._waits(child, self._clock(), str(error))
            return
        child.instance, child.started = instance, self._clock()

    def _handle_exit(self, child: Child, code: int) -> None:
        """Decide whether it is started again, and when. Raises AgentRLError where not."""
        now, pace, deaths = self._clock(), self._pace, child.deaths
        lived_s = now - child.started
        child.process, child.code = None, code
        if code == 0 and self._over:
            child.done = True
            return
        words = exit_reasons.last_line(self._log_file(child)).removeprefix("agentrl: ")
        if code == AWAY:
            self._waits(child, now, words)
            return
        child.waits = False
        deaths.add(pace, now, lived_s, self._progress_of(child.name))
        if code == REPLACED or (code == NEEDS_A_PERSON and not deaths.was_steady):
            self._given_up(child, f"{child.name}: {words}")
        elif deaths.are_hopeless(pace, now):
            times = f"{deaths.count} times without progress in the run"
            why = exit_reasons.cause(code, words)
            hint = f"see {self._log_file(child)}"
            self._given_up(child, f"{child.name} died {times}: {why}", hint)
        child.due = now + deaths.pause_s(pace, lived_s)

    def _waits(self, child: Child, now: float, words: str) -> None:
        """A service or disk that it needs is away: that is no fault of it, and told of once."""
        if not child.waits:
            self._tell(f"{child.name} is restarted until what it needs is available: {words}")
        child.waits, child.due = True, now + self._pace.back_off_s[-1]

    def _given_up(self, child: Child, words: str, hint: str = "") -> None:
        """Go on without a child that is not needed. Raises AgentRLError for any other."""
        if child.needed:
            raise AgentRLError(words, hint=hint)
        self._tell(f"{words}; the run continues without it")
        child.done = True

    def _log_file(self, child: Child) -> Path:
        return self._home / "logs" / f"{child.name}.log"

    def _write_later(self) -> None:
        """Like `_write`; while the disk takes no file, tell once and try again at each poll."""
        try:
            self._write()
        except AgentRLError as error:
            if not self._is_unwritten:
                self._tell(
                    f"`agentrl status` shows former processes, not the present ones: {error}"
                )
            self._is_unwritten = True
        else:
            self._is_unwritten = False

    def _write(self) -> None:
        """Write changes to processes.json, which `status` and `down` read. Raises AgentRLError."""
        state = {
            "run": self._run,
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
        if state == self._written:
            return
        partial = self._home / "processes.json.partial"
        try:
            partial.write_text(json.dumps(state, indent=1))
            partial.replace(self._home / "processes.json")
            self._written = state
        except OSError as error:
            with contextlib.suppress(OSError):  # a read-only disk also deletes nothing
                partial.unlink(missing_ok=True)
            raise AgentRLError(f"{self._home}: {error.strerror}", hint=ROOM) from error


def _ends(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Whether it has ended by the deadline (monotonic seconds)."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, deadline - time.monotonic()))
    return process.poll() is not None
