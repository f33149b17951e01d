"""Trains one arm with one seed: a run of the whole system from the shared starting policy."""

import threading
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path

from sqlalchemy.orm import Session

from agentrl.checkpoints import manifest
from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.errors import AgentRLError, ConfigError
from agentrl.core.types import RUN_OVER
from agentrl.db.admin import migrate
from agentrl.db.queries import curves, progress
from agentrl.db.queries.progress import Totals
from agentrl.db.registry import checkpoints
from agentrl.db.store import open_store
from agentrl.db.transitions import runs
from agentrl.experiments.pretrained.findings import At, StudyDesign, Trained
from agentrl.experiments.runner import SECTIONS
from agentrl.experiments.simulation.simulator import interruption_error
from agentrl.experiments.simulation.training import ReportProgress
from agentrl.ops.runs.begin import RunOver, begin, checkpoints_home, clear_queues
from agentrl.ops.supervisor.children import children
from agentrl.ops.supervisor.log_troubles import LogWatcher
from agentrl.ops.supervisor.screen import StallGuard
from agentrl.ops.supervisor.supervisor import Supervisor
from agentrl.ops.supervisor.watch import WatchOutput, watch

POINTS = 1000  # versions of the curve, at most
GROUPS = 16  # whose success stands for a version
UNDECIDING = {  # keys of SECTIONS that change only paths, times, memory and rounding
    *(f"dispatch.{key}" for key in ("claim_timeout_s", "body_timeout_s", "lease_s", "tick_s")),
    *(f"model.{key}" for key in ("path", "chat_template", "device")),
    *(f"trainer.{key}" for key in ("micro_batch_tokens", "memory_share", "chunk_logits")),
    *(f"trainer.{key}" for key in ("packing", "gradient_checkpointing", "inbox_bytes")),
    *(f"trainer.{key}" for key in ("snapshot_every", "stop_s", "keep_checkpoints")),
    *(f"trainer.{key}" for key in ("threads", "nice")),
}
KEPT = ("loss", "entropy", "grad_norm", "clip_fraction", "effective_sample_size")


def train(
    config: Config, stop: threading.Event, report_progress: ReportProgress, stall_s: float
) -> str:
    """Begin or continue the run until its end; return its id.

    Raises Interrupted, ConfigError if it began with another configuration, and AgentRLError if
    there is no progress for `stall_s`.
    """
    require_same_run(config)
    try:
        run_id = begin(config)
    except RunOver as error:
        return error.run_id
    path = config.home() / "config.toml"
    path.write_text(config_loading.to_toml(config))
    guard = StallGuard(stall_s)

    def show(totals: Totals) -> None:
        if words := guard.words(totals):
            raise AgentRLError(words, hint=f"see {config.home()}/logs")
        report_progress(f"update {totals.version}", totals.version)

    def say(line: str) -> None:
        report_progress(line, 0)

    supervisor = Supervisor(config.home(), config.run.name, children(config, path), say)
    with closing(open_store(config.store_url())) as store:
        try:
            supervisor.start()
            output = WatchOutput(say, show, LogWatcher(config.home() / "logs"))
            watch(supervisor, store, run_id, stop, output)
        finally:
            supervisor.stop()
    if stop.is_set():
        raise interruption_error()
    clear_queues(config, run_id, stop)
    return run_id


def require_same_run(config: Config) -> None:
    """Raise ConfigError if the run exists and learns otherwise, or from another start.

    One that is over must also have had the same number of updates to learn.
    """
    if not config.home().exists():
        return
    with closing(open_store(config.store_url())) as store:
        migrate.ensure(store)
        with store.read() as session:
            run = runs.find_run(session, config.run.name)
            if run is None:
                return
            stored = config_loading.from_json(run.config, f"run {run.name}")
            is_over = run.state in RUN_OVER
            first = checkpoints_home(config, run.run_id) / f"{run.run_id}-v000000"
    others = {"run.seed", *(["run.stop_updates"] if is_over else [])}
    every = config_loading.describe_changes(*map(config_loading.dumps, (stored, config)))
    changes = [each for each in every if _decides(each.partition(": ")[0], others)]
    if first.exists() and _weights(first) != _weights(Path(config.model.path)):
        changes.append(f"its version 0 is not {config.model.path}")
    if changes:
        raise ConfigError(
            f"{config.home()} contains a run that began otherwise: {', '.join(changes)}",
            hint="delete this folder to train again, or choose another --out",
        )


def _decides(key: str, others: Collection[str]) -> bool:
    """Return whether a key decides what a run learns. `others`: keys beside those of SECTIONS."""
    return key in others or (key.partition(".")[0] in SECTIONS and key not in UNDECIDING)


def _weights(directory: Path) -> dict[str, str]:
    files = manifest.read(directory).files
    return {name: value for name, value in files.items() if name.endswith(".safetensors")}


def described(config: Config, run_id: str, design: StudyDesign, arm: str) -> Trained:
    """Summarize a finished run from its rows."""
    with closing(open_store(config.store_url())) as store, store.read() as session:
        totals = progress.totals(session, run_id)
        live = checkpoints.live_checkpoints(session, run_id)
        found = progress.disagreements(session, run_id)
        return Trained(
            design=design,
            arm=arm,
            seed=config.run.seed,
            seconds=round(totals.seconds, 1),
            updates=totals.updates,
            episodes=totals.episodes,
            checkpoint=str(Path(live[-1].path)) if live else "",
            curve=_curve(session, run_id),
            tracks=dict(progress.policy_mix(session, run_id)),
            staleness=progress.staleness(session, run_id, of_all=True),
            disagreements=[f"{kind}: {detail}" for kind, detail in found],
        )


def _curve(session: Session, run_id: str) -> list[At]:
    success: dict[int, dict[str, float]] = {}
    for point in curves.success_by_version(session, run_id, POINTS, GROUPS):
        at = success.setdefault(point.span.version, {})
        at[point.task] = round(point.solves.mean, 4)
    metrics = curves.metrics_by_version(session, run_id)
    return [
        At(
            version=span.version,
            seconds=round(span.at_s, 1),
            tokens=span.tokens,
            success=success.get(span.version, {}),
            metrics=_kept(metrics.get(span.version, {})),
        )
        for span in curves.spans(session, run_id, POINTS)
    ]


def _kept(metrics: Mapping[str, object]) -> dict[str, float]:
    return {
        name: round(value, 6)
        for name, value in metrics.items()
        if isinstance(value, float) and (name in KEPT or name.startswith("mismatch_"))
    }
