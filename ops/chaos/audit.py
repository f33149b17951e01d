"""The audit of a run under faults: rows with their bodies, weights, and leftovers."""

import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.orm import Session

from agentrl import broker
from agentrl.checkpoints import manifest
from agentrl.core.errors import BrokerError, EnvironmentFailure
from agentrl.core.trained_hash import ROOT
from agentrl.db.audit import run_audit
from agentrl.db.audit.run_audit import AuditRules, Finding
from agentrl.db.queries import liveness
from agentrl.db.registry import checkpoints
from agentrl.envs.sandbox.inventory import ContainerInventory
from agentrl.ops.chaos.observer import RunObserver
from agentrl.ops.supervisor.env_server_host import hosts_envs

GONE_S = 10.0  # for the engine to remove the last containers


def audit_run(observer: RunObserver) -> list[Finding]:
    """All that is wrong with a run that is over. Raises StoreError."""
    dispatch = observer.config.dispatch
    rules = AuditRules(
        max_attempts=dispatch.max_attempts,
        whole_stream=dispatch.retire_at is None and dispatch.window is None,
    )

    def read(session: Session) -> list[Finding]:
        rows = run_audit.audit(session, observer.run_id, observer.claims, rules)
        dated = _without_ambiguous(session, observer, rows)
        return [*dated, *compare_weights(session, observer.run_id)]

    return [*observer.store.ask(read), *_leftovers(observer)]


def _without_ambiguous(
    session: Session, observer: RunObserver, findings: list[Finding]
) -> list[Finding]:
    """Without steps of which no clock can tell whether their checkpoint was served then."""
    undated = liveness.steps_between(session, observer.run_id, observer.ambiguous)
    return [each for each in findings if each.kind != "unserved_step" or each.detail not in undated]


def compare_weights(session: Session, run_id: str) -> Iterator[Finding]:
    """Yield checkpoints and snapshots that learned from other bodies than their row says.

    The trainer wrote the hash of those bodies beside the weights. Files that retention deleted, or
    that an object store has, are skipped.
    """
    for row in checkpoints.live_checkpoints(session, run_id):
        for directory in (Path(path) for path in (row.path, row.snapshot_path) if path):
            if not (directory / manifest.FILE).is_file():
                continue
            written, expected = manifest.read(directory).trained_hash, row.trained_hash or ROOT
            if written != expected:
                detail = f"{directory}: {written[:12]}…, its row says {expected[:12]}…"
                yield Finding("unbalanced", "weights_of_other_bodies", detail)


def _leftovers(observer: RunObserver) -> Iterator[Finding]:
    """Messages, containers and processes that outlive the run."""
    try:
        link = broker.connect(observer.cluster.direct.broker_url())
        depths = link.depths(observer.run_id)
        link.close()
    except BrokerError:  # no queue is left, as it should be
        depths = {}
    for queue, messages in depths.items():
        if messages:
            yield Finding("lost", "messages_left", f"{messages} in {queue}")
    for pid in observer.cluster.left():
        yield Finding("unbalanced", "process_left", str(pid))
    if hosts_envs(observer.config):
        for container in _containers(observer):
            yield Finding("unbalanced", "container_left", container[:12])


def _containers(observer: RunObserver) -> list[str]:
    inventory, deadline = ContainerInventory(observer.cluster.name), time.monotonic() + GONE_S
    try:
        while (
            containers := inventory.containers(all_of_them=True)
        ) and time.monotonic() < deadline:
            time.sleep(0.5)
    except EnvironmentFailure:  # no engine, so none of its containers
        return []
    return containers
