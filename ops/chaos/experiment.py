"""`agentrl chaos`: runs a real training, injects faults repeatedly, and audits the result.

Stage.up ─▶ first update ─▶ Ordeal.suffer ─▶ an end in sight ─▶ audit ─▶ one line
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

from agentrl.core import loading
from agentrl.core.errors import AgentRLError
from agentrl.db.admin import fault_injection
from agentrl.db.audit.run_audit import Finding
from agentrl.db.store import open_store
from agentrl.ops.chaos import audit
from agentrl.ops.chaos.cluster import BROKER, STORE, Stage
from agentrl.ops.chaos.fault_injector import Ordeal, Wound
from agentrl.ops.chaos.faults import Fault, Means, all_faults
from agentrl.ops.chaos.observer import Scene
from agentrl.ops.chaos.waste import Waste
from agentrl.ops.runs import hub
from agentrl.ops.runs.begin import begin

AFTER = 2  # updates that follow the last fault
FINISH_S = 600.0  # for them, and for the run to end
SHOWN = 40  # findings that are told


@dataclass(frozen=True, slots=True)
class Wish:
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
    """What came of it. `recovery_s`: of each fault that ended, from health to work."""

    kills: int
    updates: int
    findings: Sequence[Finding]
    hangs: Sequence[str]
    recovery_s: Sequence[float]
    waste: Waste = field(default_factory=Waste)

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
                "rolled_back": self.waste.rolled_back,
                "failed_without_fault": self.waste.failed_without_fault,
                "idle_s": round(self.waste.idle_s, 1),
                "recovery_s": {
                    "p50": round(median(times), 2) if times else None,
                    "max": max(times, default=None),
                },
            }
        )

    @property
    def sound(self) -> bool:
        wasted = self.waste.rolled_back or self.waste.failed_without_fault
        return not (self.findings or self.hangs or wasted)


def chaos(wish: Wish, tell: Callable[[str], None]) -> Verdict:
    """Break a training of the configuration; `tell` is called with lines for people.

    Raises AgentRLError before anything is broken where the run cannot begin.
    """
    config = hub.resolved(loading.load(wish.path))
    source = random.Random(wish.seed)
    with closing(Stage(config)) as stage:
        stage.aim(None)
        run_id = begin(stage.direct)
        url = stage.direct.store_url()
        steps = fault_injection.is_postgres(url) and wish.includes("clock store")
        with (
            fault_injection.own_clock(url) if steps else nullcontext(),
            closing(open_store(url)) as store,
            closing(stage),  # before the clock is given back
        ):
            scene = Scene(stage, run_id, store)
            stage.up()
            ordeal = Ordeal(scene, source, (), wish.patience_s, tell)
            ordeal.begin()
            ordeal.faults = _chosen(scene, wish, tell)
            tell(f"run {run_id} in {stage.home}: {len(ordeal.faults)} kinds of fault")
            if not ordeal.hangs:
                ordeal.suffer(wish.kills)
            _finish(ordeal, config.run.stop_updates or 0, tell)
            found = audit.audited(scene)
            updates = scene.seen.version if scene.seen else 0
    verdict = Verdict(
        len(ordeal.wounds),
        updates,
        found,
        ordeal.hangs,
        [wound.recovery_s for wound in ordeal.wounds if wound.recovery_s is not None],
        ordeal.waste,
    )
    _report(stage.home, ordeal.wounds, verdict, tell)
    return verdict


def _chosen(scene: Scene, wish: Wish, tell: Callable[[str], None]) -> list[Fault]:
    for service in (STORE, BROKER):
        if service in scene.stage.proxies and service not in wish.means.restarts:
            tell(f"the {service} is not restarted: --restart-{service} is not set")
    if BROKER in scene.stage.proxies and not wish.means.rabbitmqctl:
        tell("no broker alarm and no message size limit: --rabbitmqctl is not set")
    faults = [
        fault
        for fault in all_faults(scene, wish.means)
        if wish.includes(f"{fault.kind} {fault.target}")
    ]
    if not faults:
        raise AgentRLError(
            f"no fault has {' or '.join(wish.only)} in its name",
            hint="omit --only to inject all faults",
        )
    return faults


def _finish(ordeal: Ordeal, least: int, tell: Callable[[str], None]) -> None:
    """The run gets an end, which its trainer reads when it starts again; then that end comes."""
    scene, stage = ordeal.scene, ordeal.scene.stage
    version = scene.seen.version if scene.seen else 0
    stage.aim(max(least, version + AFTER))
    tell(
        f"all faults are over at version {version}; the run stops at {max(least, version + AFTER)}"
    )
    stage.signal("trainer", signal.SIGTERM)
    deadline = time.monotonic() + FINISH_S
    while (code := stage.exit_code()) is None:
        time.sleep(ordeal.pace.tick_s)
        scene.look()
        ordeal.watch()
        if time.monotonic() > deadline:
            ordeal.hangs.append(f"the run does not end within {FINISH_S:.0f} s")
            return
    if code:
        ordeal.hangs.append(f"the run ended with {code}: {stage.last_words()}")
    scene.look()


def _report(
    home: Path, wounds: Sequence[Wound], verdict: Verdict, tell: Callable[[str], None]
) -> None:
    """chaos.json beside the logs: every fault with its times, every finding; the worst is told."""
    rows = [
        {
            "fault": f"{wound.fault.kind} {wound.fault.target}",
            "recovery_s": wound.recovery_s,
            "outage_s": round(wound.outage_s, 2),
        }
        for wound in wounds
    ]
    whole = json.loads(verdict.line()) | {
        "faults": rows,
        "findings": [asdict(finding) for finding in verdict.findings],
        "stood_still": list(verdict.hangs),
    }
    (home / "chaos.json").write_text(json.dumps(whole, indent=1))
    for finding in verdict.findings[:SHOWN]:
        tell(f"{finding.among}: {finding.kind}: {finding.detail}")
    for hang in verdict.hangs:
        tell(f"hang: {hang}")
    tell(f"all faults and findings are in {home / 'chaos.json'}")
