"""`agentrl quickstart`: runs the whole pipeline on this machine and reports the result.

[clone experts] ─▶ start all processes (run paused) ─▶ measure ─▶ resume ─▶ train to the last
update ─▶ measure ─▶ stop ─▶ report

A recipe that continues its run skips the steps that are already done.
"""

import dataclasses
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from rich.console import Console
from sqlalchemy.orm import Session

from agentrl.core import logging
from agentrl.core.config.config import Config
from agentrl.core.errors import AgentRLError
from agentrl.core.types import MEASURED_FIRST, RunState
from agentrl.db.queries import curves, progress
from agentrl.db.queries.progress import Totals
from agentrl.db.registry import checkpoints
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.store import Store, open_store
from agentrl.db.transitions import runs
from agentrl.ops.evaluation.evaluate import Evaluator, Plan, PlanResult, Work, work_of
from agentrl.ops.evaluation.evaluation_rows import EvaluationRecord
from agentrl.ops.evaluation.target import Target, fit_config, resolve
from agentrl.ops.interruption import CONTINUE, Interrupted
from agentrl.ops.processes.entry import stop_on_signals
from agentrl.ops.quickstart.clone_starting_policy import make_start, require_run_memory
from agentrl.ops.quickstart.live_panel import LivePanel
from agentrl.ops.quickstart.recipes import Recipe
from agentrl.ops.quickstart.report import (
    POINT_GROUPS,
    POINTS,
    ByTask,
    Outcome,
    agentrl,
    eval_command,
    relative_path,
    report,
    require_picture,
    resume_command,
)
from agentrl.ops.quickstart.run_config import Choices, prepare
from agentrl.ops.runs.begin import RunOver, begin, clear_queues
from agentrl.ops.supervisor.children import children
from agentrl.ops.supervisor.log_troubles import LogWatcher
from agentrl.ops.supervisor.screen import StallGuard
from agentrl.ops.supervisor.supervisor import Supervisor
from agentrl.ops.supervisor.watch import WatchOutput, watch
from agentrl.ops.tables import lasting_console, print_line
from agentrl.ops.tasks.task_sources import task_sources

POLL_S = 0.1
FIRST, LAST = "0", "latest"  # versions that are measured


def quickstart(recipe: Recipe, choices: Choices, runs_folder: Path = Path("runs")) -> Outcome:
    """Train and report. Raises AgentRLError, after all processes have ended."""
    require_picture()
    console = lasting_console(sys.stderr if choices.as_json else sys.stdout)
    config, path = prepare(recipe, choices, runs_folder)
    logging.configure("quickstart", level="ERROR")
    size = recipe.size(fast=choices.fast)
    require_run_memory(recipe, config)
    make_start(recipe, size, config)
    stop = stop_on_signals()
    try:
        run_id, is_over = begin(config, paused=MEASURED_FIRST), False
    except RunOver as error:
        run_id, is_over = error.run_id, True
    with closing(open_store(config.store_url())) as store:
        story = Quickstart(recipe, config, run_id, store, stop)
        outcome = story.run(console, path, size.items, is_over=is_over)
    report(console, config, path, outcome, as_json=choices.as_json)
    return outcome


class Quickstart:
    """One run of the quickstart."""

    def __init__(
        self, recipe: Recipe, config: Config, run_id: str, store: Store, stop: threading.Event
    ) -> None:
        self._recipe = recipe
        self._config = config
        self._run_id = run_id
        self._store = store
        self._stop = stop
        self._sources = task_sources(config)
        self._work: dict[Plan, list[Work]] = {}
        self._training_seconds = 0.0
        # what an interruption is told
        self._hint = "run the same command to start again" if recipe.begin_anew else CONTINUE

    def run(self, console: Console, path: Path, items: int, *, is_over: bool) -> Outcome:
        """Start all processes, measure, train, measure, and stop all processes.

        `items`: number of held-out items for each task and decoding. `is_over`: training is
        finished.
        """
        began = time.monotonic()
        self._work = self._planned(items)
        before = self._record(FIRST)
        if not is_over or before[1].todo() or self._record(LAST)[1].todo():
            self._run(console, path, is_over=is_over)
            clear_queues(self._config, self._run_id)
        return self._outcome(before, self._record(LAST), time.monotonic() - began)

    def _run(self, console: Console, path: Path, *, is_over: bool) -> None:
        home = self._config.home()
        tell = partial(print_line, console)
        tell(
            f"run folder: {relative_path(home)}; "
            f"in another terminal: {agentrl()} status {relative_path(path)}"
        )
        supervisor = Supervisor(home, self._config.run.name, children(self._config, path), tell)
        output = WatchOutput(tell, lambda _totals: None, LogWatcher(home / "logs"))
        try:
            supervisor.start()
            if is_over:
                supervisor.run_is_over()
            with LivePanel(console, self._config) as view:
                self._measure(supervisor, view, FIRST)
                if not is_over:
                    self._train(supervisor, view, path, output)
                self._measure(supervisor, view, LAST)
        finally:
            if self._stop.is_set():
                tell("stopping …")
            supervisor.stop()

    def _outcome(
        self,
        before: tuple[Target, EvaluationRecord],
        after: tuple[Target, EvaluationRecord],
        seconds: float,
    ) -> Outcome:
        run_id = self._run_id
        with self._store.read() as session:
            totals = progress.totals(session, run_id)
            return Outcome(
                model=self._recipe.model,
                before=by_task(before[1].measured()),
                after=by_task(after[1].measured()),
                seconds=seconds,
                training_seconds=self._training_seconds,
                updates=totals.updates,
                episodes=totals.episodes,
                disagreements=progress.disagreements(session, run_id),
                policy_mix=progress.policy_mix(session, run_id),
                curve=curves.success_by_version(session, run_id, POINTS, POINT_GROUPS),
            )

    def _train(
        self, supervisor: Supervisor, view: LivePanel, path: Path, output: WatchOutput
    ) -> None:
        """Train to the last update.

        Raises Interrupted, and AgentRLError if training makes no progress.
        """
        store, run_id = self._store, self._run_id
        guard = StallGuard(self._recipe.stall_s)

        def show(totals: Totals) -> None:
            if words := guard.words(totals):
                raise AgentRLError(words, hint=f"see {self._config.home()}/logs")
            view.training(totals, store, run_id)

        store.transact(lambda session: runs.move_run(session, run_id, RunState.RUNNING))
        if self._recipe.begin_anew:
            self._hint = resume_command(path)
        began = time.monotonic()
        watch(supervisor, store, run_id, self._stop, dataclasses.replace(output, show=show))
        self._training_seconds = time.monotonic() - began
        if self._stop.is_set():
            raise Interrupted("interrupted", hint=self._hint)
        if self._recipe.begin_anew:
            self._hint = eval_command(path)

    def _planned(self, items: int) -> dict[Plan, list[Work]]:
        tasks, sampled = self._config.tasks, self._config.sampling.temperature
        plans = [
            Plan(task, tasks[task].eval_split, temperature, items)
            for task in tasks
            for temperature in (sampled, 0.0)
        ]
        return {plan: work_of(plan, self._sources[plan.task]) for plan in plans}

    def _record(self, version: str) -> tuple[Target, EvaluationRecord]:
        """Return the evaluation record of a version, and the attempts still to do."""
        target = resolve(f"{self._config.run.name}@{version}", self._config)
        return target, EvaluationRecord(
            self._store, fit_config(self._config, target), target, self._work
        )

    def _measure(self, supervisor: Supervisor, view: LivePanel, version: str) -> None:
        """Play the remaining attempts with the policy server that serves this version."""
        target, record = self._record(version)
        total = sum(map(len, self._work.values()))
        done = total - len(record.todo())

        def tick(count: int) -> None:
            nonlocal done
            done += count
            self._check(supervisor)
            view.measuring(target.version or 0, done, total)

        if record.todo():
            policy = self._policy(supervisor, target)
            tick(0)
            with closing(Evaluator(self._config, policy, self._sources)) as evaluator:
                record.fill(evaluator, tick)

    def _policy(self, supervisor: Supervisor, target: Target) -> LivePolicy:
        """Wait for the live policy that serves the target. Raises AgentRLError."""
        ready_s = self._recipe.ready_s
        deadline = time.monotonic() + ready_s
        while time.monotonic() < deadline:
            self._check(supervisor)
            if policy := self._store.ask(lambda session: self._serving(session, target)):
                return policy
            time.sleep(POLL_S)
        raise AgentRLError(
            f"no policy server started within {ready_s:.0f} s", hint="see runs/*/logs"
        )

    def _serving(self, session: Session, target: Target) -> LivePolicy | None:
        for policy in checkpoints.live_policies(session, self._run_id):
            if policy.checkpoint_id == target.checkpoint_id:
                return policy
        return None

    def _check(self, supervisor: Supervisor) -> None:
        supervisor.poll()
        if self._stop.is_set():
            raise Interrupted("interrupted during the evaluation", hint=self._hint)


def by_task(found: Sequence[PlanResult]) -> ByTask:
    """Return {task: {temperature: Measured}}."""
    tasks: dict[str, dict[float, PlanResult]] = {}
    for one in found:
        tasks.setdefault(one.plan.task, {})[one.plan.temperature] = one
    return tasks
