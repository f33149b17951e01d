"""`agentrl up` and `agentrl down`: all processes of a run on one machine.

begin ─▶ supervisor.start ─▶ poll until the run is over or a signal ─▶ supervisor.stop
"""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from sqlalchemy.orm import Session

from agentrl.core import loading, logging
from agentrl.core.config import Config, secret
from agentrl.core.errors import AgentRLError, StoreError
from agentrl.core.telemetry import exposition
from agentrl.core.types import RUN_OVER, RunState
from agentrl.db.queries import progress
from agentrl.db.queries.progress import Totals
from agentrl.db.registry import checkpoints
from agentrl.db.store import Store, open_store
from agentrl.db.transitions import runs
from agentrl.ops.configuration import configs
from agentrl.ops.doctor import memory
from agentrl.ops.processes.entry import stop_on_signals
from agentrl.ops.runs import hub
from agentrl.ops.runs.begin import begin, clear_queues, make_home
from agentrl.ops.supervisor.exit_reasons import last_line
from agentrl.ops.supervisor.locks import refuse_second, running_supervisor
from agentrl.ops.supervisor.log_troubles import LogWatcher
from agentrl.ops.supervisor.supervisor import TRAINER, Settings, Supervisor, children

START_S = 60.0  # for a detached supervisor to stand
DOWN_S = 12.0  # for a supervisor to end after SIGTERM, and the trainer's own time
LOOK_S = 1.0  # between two looks at children and run
RESTS = 20.0  # times what counting a run took, before it is counted again
RECENT_UPDATES = 5  # of which success is told
STALL_S = 300.0  # without an episode or an update: worth a word

MIB = 1024**2

T = TypeVar("T")
U = TypeVar("U")
log = logging.get_logger()


def up(path: Path, *, detach: bool) -> None:
    """Start a run's processes; return when it is over or a signal has ended them."""
    config = hub.resolved(loading.load(path))  # before signals are only noted: it may take long
    memory.require(config)
    for name in config.secret_names():
        secret(name)
    config.tasks_url()  # dispatcher and workers will ask for its variables
    configs.check_all(config)
    if detach:
        _detach(config, path)
        return
    refuse_second(config.home())  # before anything of its own, a port for one, is in the way
    logs = config.logs
    logging.configure("supervisor", level=logs.level, form=logs.format, run=config.run.name)
    stop = stop_on_signals()
    run_id = begin(config)
    logging.bind_process(run_id=run_id)
    store = open_store(config.store_url())
    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    settings = Settings(reached=partial(_reached, store, run_id), log_bytes=logs.max_mib * MIB)
    supervisor = Supervisor(config.home(), children(config, path), say, settings)
    try:
        with exposition.exported(config.metrics, config.run.name, "supervisor"):
            logs_seen = LogWatcher(config.home() / "logs")
            supervisor.start()
            say(f"run {run_id}: {len(supervisor.pids())} processes, logs in {config.home()}/logs")
            screen = Screen(say, _printer(say, store, run_id), logs_seen)
            last = watch(supervisor, store, run_id, stop, screen)
            supervisor.stop()
            last = _newest(store, run_id, last)
            end = _end(store, run_id, last)
    finally:
        supervisor.stop()
        store.close()
    again = "" if last.state in RUN_OVER else f"; resume with: {loading.command('up', path)}"
    say(f"run {config.run.name}: {end}{again}")
    if last.state in RUN_OVER and (kept := clear_queues(config, run_id)):
        say(f"{kept} messages stay in the run's queues")


def down(path: Path) -> None:
    """End the supervisor of a config's home, and with it what it started."""
    config = loading.load(path)
    home = config.home()
    pid = running_supervisor(home)
    if pid is None:
        raise AgentRLError(f"nothing runs in {home}", hint=loading.command("up", path))
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_S + config.trainer.stop_s
    while running_supervisor(home) == pid:
        if time.monotonic() > deadline:
            raise AgentRLError(f"supervisor {pid} does not end", hint=f"kill -9 {pid}")
        time.sleep(0.1)
    print(f"ended; resume with: {loading.command('up', path)}")


@dataclass(frozen=True, slots=True)
class Screen:
    """What people see of a run: lines, its totals, and what goes wrong again and again.

    `look_s`: between two looks; `rests`: times what counting a run took, before the next count.
    """

    say: Callable[[str], None]
    show: Callable[[Totals], None]
    logs: LogWatcher
    look_s: float = LOOK_S
    rests: float = RESTS


def watch(
    supervisor: Supervisor, store: Store, run_id: str, stop: threading.Event, screen: Screen
) -> Totals:
    """Poll children and run until the run is over or `stop`; the last totals.

    Counting takes one part in `screen.rests` of the time at most, however long the run has become.
    A store that is away is waited for: the children wait too.
    """
    totals = store.ask(lambda session: progress.totals(session, run_id))
    due, away = -math.inf, False
    while not (totals.state in RUN_OVER or stop.wait(screen.look_s)):
        supervisor.poll()
        for line in screen.logs.look():
            screen.say(line)
        began = time.monotonic()
        try:
            state = store.ask(lambda session: runs.run_state(session, run_id), patience_s=0.0)
            if away:
                screen.say("the store answers again")
            away = False
            if state == totals.state and began < due:
                continue
            totals = store.ask(lambda session: progress.totals(session, run_id), patience_s=0.0)
            due = time.monotonic() + screen.rests * (time.monotonic() - began)
        except StoreError as error:
            if not away:
                screen.say(f"the run waits for its store: {error}")
            away = True
            continue
        screen.show(totals)
    if totals.state in RUN_OVER:
        supervisor.run_is_over()
    return totals


def _reached(store: Store, run_id: str, name: str) -> int | None:
    """How far the run is: the trainer's versions, for others the episodes; None: nobody knows."""

    def far(session: Session) -> int:
        totals = progress.totals(session, run_id)
        return totals.version if name == TRAINER else totals.episodes

    return _asked(store, far, None)


def _asked(store: Store, question: Callable[[Session], T], otherwise: U) -> T | U:
    """The answer of a store that is there; `otherwise` without it."""
    try:
        return store.ask(question, patience_s=0.0)
    except StoreError as error:
        log.warning("store is away", error=str(error))
        return otherwise


def _newest(store: Store, run_id: str, last: Totals) -> Totals:
    """The totals after an orderly end, which may commit an update; `last` without the store."""
    return _asked(store, lambda session: progress.totals(session, run_id), last)


def _goes_on_from(store: Store, run_id: str, version: int) -> int:
    """The version a trainer that starts now goes on from, `version` at most."""

    def snapshot(session: Session) -> int:
        newest = checkpoints.latest_snapshot(session, run_id)
        return newest.version if newest else 0

    return min(_asked(store, snapshot, version), version)


def _end(store: Store, run_id: str, last: Totals) -> str:
    """How a run was left, and where less than all of it was saved."""
    if last.state in RUN_OVER:
        return f"{last.state} at version {last.version}"
    state = "ended" if last.state == RunState.RUNNING else last.state
    saved = _goes_on_from(store, run_id, last.version)
    less = f" and goes on from version {saved}" if saved < last.version else ""
    return f"{state} at version {last.version}{less}"


class StallGuard:
    """Notices where neither an episode nor an update has come for `limit_s` of a running run."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._seen: tuple[int, int] | None = None
        self._since = time.monotonic()

    def words(self, totals: Totals) -> str:
        """What to tell, once every `limit_s`; empty while the run moves."""
        moved = (totals.episodes, totals.version)
        stalled = moved == self._seen and totals.state == RunState.RUNNING
        if stalled and time.monotonic() - self._since <= self._limit_s:
            return ""
        self._seen, self._since = moved, time.monotonic()
        return f"no episode and no update for {self._limit_s:.0f} s" if stalled else ""


def _success(store: Store, run_id: str) -> str:
    """Success by task of late, to be told beside a version; empty where nothing is known."""
    none: dict[str, float] = {}
    found = _asked(store, lambda s: progress.recent_success(s, run_id, RECENT_UPDATES), none)
    told = ", ".join(f"{task} {success:.2f}" for task, success in sorted(found.items()))
    return f" · success {told}" if told else ""


def _printer(say: Callable[[str], None], store: Store, run_id: str) -> Callable[[Totals], None]:
    shown, guard = -1, StallGuard(STALL_S)
    problems: dict[str, str] = {}

    def show(totals: Totals) -> None:
        nonlocal shown, problems
        before, problems = (
            problems,
            _asked(store, lambda session: checkpoints.server_problems(session, run_id), problems),
        )
        for name, problem in sorted(problems.items()):
            if problem != before.get(name):
                say(f"policy server {name}: {problem}")
        if totals.version < shown:
            begins = _goes_on_from(store, run_id, totals.version)
            undone = f"{shown - begins} update{'s are' if shown - begins > 1 else ' is'}"
            say(f"goes on from version {begins}: {undone} learned again")
        if totals.version != shown:
            shown = totals.version
            say(
                f"version {totals.version} · {totals.episodes} episodes · "
                f"{totals.loss_tokens} tokens · {totals.seconds:.0f} s{_success(store, run_id)}"
            )
        if words := guard.words(totals):
            say(f"{words}; see the logs, and `agentrl status`")

    return show


def _detach(config: Config, path: Path) -> None:
    home = make_home(config)
    refuse_second(home)
    log = home / "supervisor.log"
    log.unlink(missing_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "agentrl.cli.main", "up", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_S
    while running_supervisor(home) != process.pid:
        if process.poll() is not None or time.monotonic() > deadline:
            raise AgentRLError(last_line(log).removeprefix("agentrl: "))
        time.sleep(0.1)
    print(f"supervisor {process.pid}; stop it with: {loading.command('down', path)}")
