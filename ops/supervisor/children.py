"""The processes of a run on one machine, as the supervisor starts them.

configuration ─▶ policy servers · env server · recorder · trainer · workers · evaluator ·
                 dispatcher · tracker
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.core.config.config import Config
from agentrl.core.processes.process import Instance, agentrl_command
from agentrl.db.engine import TIMEOUTS
from agentrl.ops.doctor.machine import this_machine
from agentrl.ops.doctor.memory_items import VISIBLE, shares_trainer_card
from agentrl.ops.supervisor.env_server_host import hosts_envs
from agentrl.ops.supervisor.restarts import Deaths

# Between SIGTERM and SIGKILL: the store may be silent for `stopping_s`, and the rest takes little
# (db/engine.py `Silence`, workers/worker_exit.py GRACE_S).
STOP_S = TIMEOUTS.stopping_s + 2.5
RECORDER, TRAINER = "recorder", "trainer"
EVALUATOR, TRACKER = "evaluator", "tracker"  # the run goes on without them


@dataclass(slots=True)
class Child:
    """A supervised process. `stop_s`: between SIGTERM and SIGKILL.

    `after`: policy servers that must serve before its first start.
    """

    name: str
    command: Sequence[str]
    phase: int
    metrics: int = 0  # the port of its metrics, 0 for none
    process: subprocess.Popen[bytes] | None = None
    instance: Instance | None = None
    started: float = 0.0
    deaths: Deaths = field(default_factory=Deaths)
    code: int = 0
    restarts: int = 0
    done: bool = False
    needed: bool = True
    waits: bool = False  # for a service that is away, and has reported so
    stop_s: float = STOP_S
    due: float = field(default=0.0)
    after: Sequence[str] = ()


def children(config: Config, path: Path) -> list[Child]:
    """Return the processes that `agentrl up` starts, in the order of their start."""

    def child(name: str, *arguments: str, phase: int) -> Child:
        command = agentrl_command(*arguments, "--supervised")
        stop_s = max(STOP_S, config.trainer.stop_s if name == TRAINER else 0.0)
        needed = name not in (EVALUATOR, TRACKER)
        after = shared if name == TRAINER else []
        return Child(name, command, phase, needed=needed, stop_s=stop_s, after=after)

    file, policies = str(path), config.policy_servers()
    names = this_machine().names if any(VISIBLE in each.vllm.env for each in policies) else {}
    shared = [each.name for each in policies if shares_trainer_card(config, each, names)]
    servers = [
        child(f"policy-{server.name}", "policy", file, "--name", server.name, phase=1)
        for server in policies
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
        *([child(TRACKER, "tracker", file, phase=1)] if config.trackers.use else []),
    ]
    for port, each in enumerate(found if config.metrics.port else (), config.metrics.port + 1):
        each.metrics = port  # after the supervisor's own
    return found
