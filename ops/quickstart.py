"""`agentrl quickstart`: the whole pipeline on this machine, from a warm-started policy to a table.

start all processes (run paused) ─▶ measure ─▶ resume ─▶ train to the last update ─▶ measure ─▶ stop
"""

import dataclasses
import os
import threading
import time
from contextlib import closing
from pathlib import Path

from rich.console import Console
from sqlalchemy.orm import Session

from core import loading, logging
from core.config import Config
from core.errors import AgentRLError
from core.types import RunState
from db import progress, registry, runs
from db.progress import Totals
from db.registry import LivePolicy
from db.store import Store, open_store
from ops.eval_record import Record
from ops.eval_target import fitted, resolve
from ops.evaluate import Evaluator, Measured, Plan, work_of
from ops.process import stop_on_signals
from ops.quickstart_report import (
    BINS,
    ByTask,
    Outcome,
    agentrl,
    measured,
    near,
    report,
    require_picture,
    resumed,
)
from ops.quickstart_view import View
from ops.roles import sources
from ops.runs import begin, clear_queues
from ops.supervise import Supervisor, children
from ops.troubles import LogWatcher
from ops.up import Screen, StallGuard, watch

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.toml"
READY_S = 90.0  # for the policy server to serve
FAST = {"updates": 8, "items": 48}
ITEMS = 200  # held-out items of each task and temperature
POLL_S = 0.1
STALL_S = 120.0  # without an episode or an update: something is broken, and is said


@dataclasses.dataclass(frozen=True, slots=True)
class Choices:
    """What the command line chooses."""

    seed: int
    updates: int | None
    fast: bool
    as_json: bool
    cross_policy: bool
    task_norm: bool


class Interrupted(AgentRLError):
    """Ctrl-C or SIGTERM."""


def quickstart(choices: Choices) -> None:
    """Train and report. Raises AgentRLError; every process has ended by then."""
    require_picture()
    stop = stop_on_signals()
    console = Console(stderr=choices.as_json)
    config, path = prepare(choices)
    logging.configure("quickstart", level="ERROR")
    run_id = begin(config, paused="the quickstart measures version 0 first")
    store = open_store(config.store_url())
    try:
        items = FAST["items"] if choices.fast else ITEMS
        outcome = Quickstart(config, run_id, store, stop, items).run(console, path)
    finally:
        store.close()
    report(console, config, path, outcome, as_json=choices.as_json)


class Quickstart:
    """One run of it; `items`: held-out items measured for each task and decoding."""

    def __init__(
        self, config: Config, run_id: str, store: Store, stop: threading.Event, items: int
    ) -> None:
        self._config = config
        self._run_id = run_id
        self._store = store
        self._stop = stop
        self._items = items
        self._mend = "the same command begins anew"  # of an interruption

    def run(self, console: Console, path: Path) -> Outcome:
        """Start everything, measure, train, measure, end everything."""
        began = time.monotonic()
        store, run_id = self._store, self._run_id
        home = self._config.home()

        def tell(line: str) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        tell(f"run in {near(home)}; elsewhere: {agentrl()} status {near(path)}")
        supervisor = Supervisor(home, children(self._config, path), tell)
        logs = LogWatcher(home / "logs")
        try:
            supervisor.start()
            with View(console, self._config) as view:
                before = self._measure(supervisor, view)
                store.transact(lambda session: runs.move_run(session, run_id, RunState.RUNNING))
                self._mend = resumed(path)
                guard = StallGuard(STALL_S)

                def show(totals: Totals) -> None:
                    if words := guard.words(totals):
                        raise AgentRLError(words, mend=f"see {home}/logs")
                    view.training(totals, store, run_id)

                last = watch(supervisor, store, run_id, self._stop, Screen(tell, show, logs))
                if self._stop.is_set():
                    raise Interrupted("interrupted", mend=self._mend)
                self._mend = measured(path)
                after = self._measure(supervisor, view)
        finally:
            if self._stop.is_set():
                tell("ending …")
            supervisor.stop()
        clear_queues(self._config, run_id)
        with store.read() as session:
            return Outcome(
                before=before,
                after=after,
                seconds=time.monotonic() - began,
                updates=last.updates,
                episodes=last.episodes,
                disagreements=progress.disagreements(session, run_id),
                policy_mix=progress.policy_mix(session, run_id),
                curve=progress.success_over_time(session, run_id, bins=BINS),
            )

    def _measure(self, supervisor: Supervisor, view: View) -> ByTask:
        """Success of the newest checkpoint: {task: {temperature: Measured}}; kept as it comes."""
        tasks, sampled = self._config.tasks, self._config.sampling.temperature
        plans = [
            Plan(task, tasks[task].eval_split, temperature, self._items)
            for task in tasks
            for temperature in (sampled, 0.0)
        ]
        policy, found = self._newest_policy(supervisor), sources(self._config)
        work = {plan: work_of(plan, found[plan.task]) for plan in plans}
        target = resolve(policy.checkpoint_id, self._config)
        record = Record(self._store, fitted(self._config, target), target, work)
        done, total = 0, sum(map(len, work.values()))

        def tick(count: int) -> None:
            nonlocal done
            done += count
            self._check(supervisor)
            view.measuring(policy.version, done, total)

        with closing(Evaluator(self._config, policy, found)) as evaluator:
            record.fill(evaluator, tick)
        by_task: dict[str, dict[float, Measured]] = {task: {} for task in tasks}
        for one in record.measured():
            by_task[one.plan.task][one.plan.temperature] = one
        return by_task

    def _newest_policy(self, supervisor: Supervisor) -> LivePolicy:
        """The live policy that serves the newest checkpoint, once one does. Raises AgentRLError."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            self._check(supervisor)
            if policy := self._store.ask(self._serving_newest):
                return policy
            time.sleep(POLL_S)
        raise AgentRLError(f"no policy server came up in {READY_S:.0f} s", mend="see runs/*/logs")

    def _serving_newest(self, session: Session) -> LivePolicy | None:
        newest = registry.latest_checkpoint(session, self._run_id)
        for policy in registry.live_policies(session, self._run_id):
            if newest is not None and policy.checkpoint_id == newest.checkpoint_id:
                return policy
        return None

    def _check(self, supervisor: Supervisor) -> None:
        supervisor.poll()
        if self._stop.is_set():
            raise Interrupted("interrupted while measuring", mend=self._mend)


def prepare(choices: Choices) -> tuple[Config, Path]:
    """The quickstart's configuration with the choices in it, written to a home of its own."""
    name = f"quickstart-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    home = Path("runs") / name
    written = loading.load(CONFIG, {})
    overrides = {
        "RUN__NAME": f'"{name}"',
        "RUN__HOME": f'"{home.resolve()}"',
        "RUN__SEED": str(choices.seed),
        "MODEL__PATH": f'"{CONFIG.parents[1] / written.model.path}"',
    }
    for task in written.tasks:
        overrides[f"TASKS__{task.upper()}__OPTIONS__SEED"] = str(choices.seed)
    updates = choices.updates or (FAST["updates"] if choices.fast else None)
    if updates is not None:
        overrides["RUN__STOP_UPDATES"] = str(updates)
    if not choices.cross_policy:
        overrides["SAMPLING__STRATEGY"] = '"current"'
    if not choices.task_norm:
        overrides["TRAINER__NORMALISE"] = '"none"'
    prefixed = {loading.PREFIX + key: value for key, value in overrides.items()}
    config = loading.load(CONFIG, prefixed | dict(os.environ))
    home.mkdir(parents=True)
    path = home / "config.toml"
    path.write_text(loading.to_toml(config))
    return config, path
