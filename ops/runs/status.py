"""`agentrl status`: a run's state, processes, live policies and alarms."""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.errors import StoreUnavailable
from agentrl.core.telemetry.exposition import address
from agentrl.core.telemetry.outages import Outage, read_outages
from agentrl.core.types import MEASURED_FIRST, RUN_OVER, EpisodeState, RunState
from agentrl.db.admin.readonly import open_history
from agentrl.db.queries import balance, progress
from agentrl.db.registry import checkpoints, outages
from agentrl.db.transitions import alarms, lifecycle, runs
from agentrl.ops.supervisor.locks import running_supervisor
from agentrl.ops.tables import console, lasting_console, plain, print_line


def status(path: Path, *, as_json: bool) -> None:
    """Print the status. Raises StoreError."""
    config = config_loading.load(path)
    found = _look_or_show_outages(config)
    if as_json:
        print(json.dumps(found))
        return
    out, totals = console(), found["totals"]
    over = totals["state"] in RUN_OVER
    _show_run(out, found)
    processes = plain("process", "pid", "restarts", *(["metrics"] if found["metrics"] else []))
    for name, row in found["processes"].items():
        pid = "ended" if row["done"] else str(row["pid"] or "restarting")
        urls = [found["metrics"][name]] if name in found["metrics"] else []
        processes.add_row(name, pid, str(row["restarts"]), *urls)
    if found["metrics"]:
        processes.add_row("supervisor", "", "", found["metrics"]["supervisor"])
    out.print(processes if found["processes"] else _describe_absence(path, found))
    policies = plain("track", "version", "checkpoint", "server")
    for row in found["policies"]:
        policies.add_row(row["track"], str(row["version"]), row["checkpoint_id"], row["url"])
    out.print(policies if found["policies"] else "no live policy")
    if totals["state"] == RunState.PAUSED:
        print(_resume_line(path, found["reason"], is_supervised=bool(found["processes"])))
    _show_problems(out, found, config.home() / "logs")
    if found["alarms"]:
        duration = "raised at the end for" if over else "for"
        raised = plain("alarm", "task", "value", "threshold", "since version", duration)
        for row in found["alarms"]:
            raised.add_row(*_alarm_cells(row))
        out.print(raised)
    if over:
        out.print(f"To train on, set another run.name, or {found['continuation']}.")


def _show_run(out: Console, found: dict[str, Any]) -> None:
    totals = found["totals"]
    state = _describe_state(totals["state"], found["reason"])
    if totals["state"] == RunState.RUNNING and not found["processes"] and not found["leases"]:
        state = ": no process runs"
    groups = ", ".join(f"{count} {state}" for state, count in sorted(found["groups"].items()))
    out.print(
        f"run {found['run']}{state} · version {totals['version']} · "
        f"{totals['episodes']} episodes · {totals['sampled_tokens']:,} sampled tokens · "
        f"{totals['trained_tokens']:,} trained · groups: {groups or 'none'}"
    )
    if found["success"]:
        out.print(
            f"recent success (groups closed since the last {progress.RECENT_UPDATES} updates "
            f"began): {progress.percent_by_task(found['success'])}"
        )


def _show_problems(out: Console, found: dict[str, Any], logs: Path) -> None:
    _show_outages([Outage(**row) for row in found["outages"]])
    where = f"the logs in {logs}" if logs.is_dir() else "the workers' logs"
    for reason, episodes in found["failed"].items():
        out.print(f"failed episodes: {episodes:,} with {reason}; {where} say why")
    for name, problem in found["problems"].items():
        out.print(f"policy server {name}: {problem}", style="red", markup=False)


def _describe_state(state: str, reason: str) -> str:
    if state in RUN_OVER:
        return f" is over ({state}: {reason})"
    return f": {state} ({reason})" if state == RunState.PAUSED and reason else f": {state}"


def _describe_absence(path: Path, found: dict[str, Any]) -> str:
    """Say that no supervisor runs here, and who is alive, or how to start the processes."""
    if found["leases"]:
        alive = ", ".join(found["leases"])
        return f"no supervised process on this machine; others are alive: {alive}"
    if found["totals"]["state"] in RUN_OVER:
        return "no processes"
    return f"no processes; start them with: {config_loading.command('up', path)}"


def _resume_line(path: Path, reason: str, *, is_supervised: bool) -> str:
    """Say how a paused run goes on; a live quickstart resumes its run itself."""
    may_measure = is_supervised and reason == MEASURED_FIRST
    unless = ", unless a quickstart measures it now" if may_measure else ""
    return f"resume the run with: {config_loading.command('run resume', path)}{unless}"


def _alarm_cells(row: dict[str, Any]) -> list[str]:
    figures = f"{row['value']:.3g}", f"{row['threshold']:.3g}", str(row["version"])
    return [row["name"], row["task"] or "all", *figures, f"{row['since_s'] / 60:.0f} min"]


def _look_or_show_outages(config: Config) -> dict[str, Any]:
    """Return the status. Raises StoreError, after saying on stderr what processes wait for."""
    try:
        return look(config)
    except StoreUnavailable:
        screen = lasting_console(sys.stderr)
        for each in _outages(config):
            print_line(screen, str(each))
        raise


def _show_outages(found: Sequence[Outage]) -> None:
    for each in found:
        console().print(str(each), style="red", markup=False)


def look(config: Config) -> dict[str, Any]:
    """Return the current status. Raises StoreError if the run does not exist."""
    with closing(open_history(config.store_url())) as store, store.read() as session:
        run = runs.require_run(session, config.run.name)
        return {
            "run": run.name,
            "run_id": run.run_id,
            "reason": run.reason,
            "continuation": lifecycle.describe_continuation(session, run.run_id)
            if run.state in RUN_OVER
            else "",
            "totals": dataclasses.asdict(progress.totals(session, run.run_id)),
            "success": progress.recent_success(session, run.run_id),
            "groups": progress.groups_by_state(session, run.run_id),
            "failed": {
                reason: episodes
                for state, reason, episodes, _ in balance.failed_counts(session, run.run_id)
                if state == EpisodeState.FAILED
            },
            "policies": [
                dataclasses.asdict(policy)
                for policy in checkpoints.live_policies(session, run.run_id)
            ],
            "problems": checkpoints.server_problems(session, run.run_id),
            "alarms": [
                dataclasses.asdict(alarm) for alarm in alarms.raised_alarms(session, run.run_id)
            ],
            "leases": lifecycle.live_processes(session, run.run_id),
            "processes": (processes := _processes(config)),
            "metrics": _metrics(config.metrics.host, processes),
            "outages": [
                dataclasses.asdict(each)
                for each in _outages(config) + outages.read_outages(session, run.run_id)
            ],
        }


def _metrics(host: str, processes: Mapping[str, Any]) -> dict[str, str]:
    """Return the metrics URLs of the supervisor and its processes.

    Ports are those of the running supervisor, not of the caller's configuration: its own port is
    the one before those of its processes.
    """
    ports = {name: row["metrics"] for name, row in processes.items() if row.get("metrics")}
    if ports:
        ports["supervisor"] = min(ports.values()) - 1
    return {name: address(host, port) for name, port in ports.items()}


def _outages(config: Config) -> list[Outage]:
    if running_supervisor(config.home(), config.run.name) is None:
        return []
    return read_outages((config.home() / "logs").glob("*.log"), run=config.run.name)


def _processes(config: Config) -> dict[str, Any]:
    if running_supervisor(config.home(), config.run.name) is None:
        return {}
    state = json.loads((config.home() / "processes.json").read_text())
    processes: dict[str, Any] = state["processes"]
    return processes
