"""`agentrl chaos`: runs a real training, injects faults repeatedly, and audits the result.

Cluster.up ─▶ first update ─▶ FaultInjector.inject ─▶ an end in sight ─▶ audit ─▶ one line
"""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from agentrl.core import config_loading
from agentrl.core.errors import AgentRLError
from agentrl.db.admin import fault_injection
from agentrl.db.audit.run_audit import Finding
from agentrl.db.store import open_store
from agentrl.ops.chaos import audit
from agentrl.ops.chaos.cluster import BROKER, STORE, Cluster
from agentrl.ops.chaos.fault_costs import FaultCosts
from agentrl.ops.chaos.fault_injector import ActiveFault, FaultInjector
from agentrl.ops.chaos.faults import Fault, Means, all_faults
from agentrl.ops.chaos.observer import RunObserver
from agentrl.ops.models import hub
from agentrl.ops.runs.begin import begin

AFTER = 2  # updates that follow the last fault
FINISH_S = 600.0  # for them, and for the run to end
MAX_FINDINGS = 40  # findings that are told


@dataclass(frozen=True, slots=True)
class ChaosRequest:
    """`only`: words that a fault's "kind target" must hold one of; every fault where empty."""

    path: Path
    kills: int
    seed: int
    patience_s: float = 60.0
    only: Sequence[str] = ()
    means: Means = field(default_factory=Means)

    def includes(self, fault: str) -> bool:
        """Whether a fault of that kind and target may be drawn."""
        return not self.only or any(word in fault for word in self.only)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it. `recovery_s`: of each fault that ended, from health to work.

    `tokens_in_vain`: sampled between the first fault and the last, and not kept.
    """

    kills: int
    updates: int
    findings: Sequence[Finding]
    hangs: Sequence[str]
    recovery_s: Sequence[float]
    costs: FaultCosts = field(default_factory=FaultCosts)
    tokens_in_vain: int = 0

    def line(self) -> str:
        """The one JSON line."""
        among = Counter(finding.among for finding in self.findings)
        times = [round(each, 2) for each in self.recovery_s]
        return json.dumps(
            {
                "kills": self.kills,
                "updates": self.updates,
                "lost": among["lost"],
                "trained_twice": among["trained_twice"],
                "unbalanced": among["unbalanced"],
                "hangs": len(self.hangs),
                "rolled_back": self.costs.rolled_back,
                "failed_without_fault": self.costs.failed_without_fault,
                "idle_s": round(self.costs.idle_s, 1),
                "resampled_tokens_per_kill": round(
                    max(0, self.tokens_in_vain) / max(1, self.kills), 1
                ),
                "recovery_s": {
                    "p50": round(median(times), 2) if times else None,
                    "max": max(times, default=None),
                },
            }
        )

    @property
    def sound(self) -> bool:
        wasted = self.costs.rolled_back or self.costs.failed_without_fault
        return not (self.findings or self.hangs or wasted)


def chaos(request: ChaosRequest, tell: Callable[[str], None]) -> Verdict:
    """Break a training of the configuration; `tell` is called with lines for people.

    Raises AgentRLError before anything is broken where the run cannot begin.
    """
    config = hub.resolve_model(config_loading.load(request.path))
    source = random.Random(request.seed)
    with closing(Cluster(config)) as cluster:
        cluster.aim(None)
        run_id = begin(cluster.direct)
        url = cluster.direct.store_url()
        steps = fault_injection.is_postgres(url) and request.includes("clock store")
        with (
            fault_injection.use_own_clock(url) if steps else nullcontext(),
            closing(open_store(url)) as store,
            closing(cluster),  # before the clock is given back
        ):
            observer = RunObserver(cluster, run_id, store)
            cluster.up()
            injector = FaultInjector(observer, source, (), request.patience_s, tell)
            injector.begin()
            injector.faults = _choose_faults(observer, request, tell)
            tell(f"run {run_id} in {cluster.home}: {len(injector.faults)} kinds of fault")
            in_vain = observer.tokens_in_vain()
            if not injector.hangs:
                injector.inject(request.kills)
            in_vain = observer.tokens_in_vain() - in_vain
            _finish(injector, config.run.stop_updates or 0, tell)
            findings = audit.audit_run(observer)
            updates = observer.seen.version if observer.seen else 0
    verdict = Verdict(
        len(injector.active_faults),
        updates,
        findings,
        injector.hangs,
        [active.recovery_s for active in injector.active_faults if active.recovery_s is not None],
        injector.costs,
        tokens_in_vain=in_vain,
    )
    _report(cluster.home, injector.active_faults, verdict, tell)
    return verdict


def _choose_faults(
    observer: RunObserver, request: ChaosRequest, tell: Callable[[str], None]
) -> list[Fault]:
    for service in (STORE, BROKER):
        if service in observer.cluster.proxies and service not in request.means.restarts:
            tell(f"the {service} is not restarted: --restart-{service} is not set")
    if BROKER in observer.cluster.proxies and not request.means.rabbitmqctl:
        tell("no broker alarm and no message size limit: --rabbitmqctl is not set")
    faults = [
        fault
        for fault in all_faults(observer, request.means)
        if request.includes(f"{fault.kind} {fault.target}")
    ]
    if not faults:
        raise AgentRLError(
            f"no fault has {' or '.join(request.only)} in its name",
            hint="omit --only to inject all faults",
        )
    return faults


def _finish(injector: FaultInjector, least: int, tell: Callable[[str], None]) -> None:
    """The run gets an end, which its trainer reads when it starts again; then that end comes."""
    observer, cluster = injector.observer, injector.observer.cluster
    version = observer.seen.version if observer.seen else 0
    cluster.aim(max(least, version + AFTER))
    tell(
        f"all faults are over at version {version}; the run stops at {max(least, version + AFTER)}"
    )
    cluster.signal("trainer", signal.SIGTERM)
    deadline = time.monotonic() + FINISH_S
    while (code := cluster.exit_code()) is None:
        time.sleep(injector.pace.tick_s)
        observer.look()
        injector.watch()
        if time.monotonic() > deadline:
            injector.hangs.append(f"the run does not end within {FINISH_S:.0f} s")
            return
    if code:
        injector.hangs.append(f"the run ended with {code}: {cluster.last_words()}")
    observer.look()


def _report(
    home: Path, active_faults: Sequence[ActiveFault], verdict: Verdict, tell: Callable[[str], None]
) -> None:
    """chaos.json beside the logs: every fault with its times, every finding; the worst is told."""
    rows = [
        {
            "fault": active.name,
            "recovery_s": active.recovery_s,
            "outage_s": round(active.outage_s, 2),
        }
        for active in active_faults
    ]
    whole = json.loads(verdict.line()) | {
        "faults": rows,
        "findings": [asdict(finding) for finding in verdict.findings],
        "stood_still": list(verdict.hangs),
    }
    (home / "chaos.json").write_text(json.dumps(whole, indent=1))
    for finding in verdict.findings[:MAX_FINDINGS]:
        tell(f"{finding.among}: {finding.kind}: {finding.detail}")
    for hang in verdict.hangs:
        tell(f"hang: {hang}")
    tell(f"all faults and findings are in {home / 'chaos.json'}")
