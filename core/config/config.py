"""The whole configuration of a run.

`core/config_loading.py` reads a TOML file and the variables AGENTRL__SECTION__KEY into a `Config`.
The keys are in `core/config/sections/`. Secrets are not part of it (`core/config/secrets.py`).
Paths are relative to the directory in which a command is started.
"""

from pathlib import Path

import msgspec

from agentrl.core.config.secrets import fill_secrets
from agentrl.core.config.sections.base import Positive, Section
from agentrl.core.config.sections.episodes import Dispatch, Sampling, Worker
from agentrl.core.config.sections.monitoring import (
    Dashboard,
    Eval,
    Logs,
    Metrics,
    Tracing,
    Trackers,
)
from agentrl.core.config.sections.policies import EVALUATED, Model, PolicyServer
from agentrl.core.config.sections.run import Broker, Run, Store
from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.config.sections.training import Alarms, Teacher, Trainer
from agentrl.core.errors import ConfigError


class Config(Section, frozen=True):
    """The whole configuration of one run."""

    tasks: dict[str, Task]
    run: Run = Run()
    store: Store = Store()
    broker: Broker = Broker()
    dispatch: Dispatch = Dispatch()
    worker: Worker = Worker()
    workers: Positive = 1
    """Worker processes that `agentrl up` starts."""
    sampling: Sampling = Sampling()
    model: Model = Model()
    policy: list[PolicyServer] = msgspec.field(default_factory=list)
    trainer: Trainer = Trainer()
    teacher: list[Teacher] = msgspec.field(default_factory=list)
    alarms: Alarms = Alarms()
    envs: Envs = Envs()
    eval: Eval = Eval()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
    logs: Logs = Logs()
    trackers: Trackers = Trackers()
    dashboard: Dashboard = Dashboard()

    def policy_servers(self) -> list[PolicyServer]:
        """Return the servers to start: by default one local server for current and lagged(4).

        A server of an external model follows no track.
        """
        if not self.policy:
            return [PolicyServer(name="policy", tracks=["current", "lagged(4)"])]
        replace = msgspec.structs.replace
        return [replace(s, tracks=[]) if s.engine == "external" else s for s in self.policy]

    def policy_server(self, name: str = "") -> PolicyServer:
        """Return the server with this name, or the first one. Raises ConfigError."""
        servers = {server.name: server for server in self.policy_servers()}
        if name and name not in servers:
            raise ConfigError(f"no [[policy]] is named {name}; known: {', '.join(servers)}")
        return servers[name] if name else next(iter(servers.values()))

    def taught_tasks(self) -> set[str]:
        return {task for teacher in self.teacher for task in teacher.tasks or self.tasks}

    def judge_policies(self) -> set[str]:
        return {task.judge.policy for task in self.tasks.values()} - {""}

    def teacher_policies(self) -> set[str]:
        return {teacher.policy() for teacher in self.teacher} - {""}

    def silent_policies(self) -> set[str]:
        """Return the policies that judge or teach. They never act."""
        return self.judge_policies() | self.teacher_policies()

    def policy_token_env(self) -> str:
        """Return the variable of the policy servers' token; empty: no token.

        Raises ConfigError if they differ: workers send the same token to every server.
        """
        names = sorted({server.token_env for server in self.policy_servers()})
        if len(names) > 1:
            raise ConfigError(
                f"policy.token_env: the policy servers differ: {' and '.join(map(repr, names))}",
                hint="give every [[policy]] the same token_env",
            )
        return names[0]

    def secret_names(self) -> list[str]:
        """Return the names of the secrets that the processes of the run read, sorted."""
        servers = self.policy_servers()
        names = {server.token_env for server in servers} | {self.envs.token_env}
        names |= {server.external.key_env for server in servers if server.engine == "external"}
        names |= {self.metrics.token_env} if self.metrics.port else set()
        return sorted(names - {""})

    def as_evaluated(self) -> "Config":
        """Return this configuration with the evaluator's device and concurrency."""
        replace = msgspec.structs.replace
        return replace(
            self,
            worker=replace(self.worker, concurrency=self.eval.concurrency),
            model=replace(self.model, device=self.eval.device or self.model.device),
        )

    def eval_server(self) -> PolicyServer:
        asked = self.eval
        return PolicyServer(
            name="evaluator",
            engine=asked.engine,
            tracks=[EVALUATED],
            threads=asked.threads,
            vllm=asked.vllm,
        )

    def engine_servers(self) -> list[PolicyServer]:
        """Return the policy servers, and that of the evaluator if checkpoints are evaluated."""
        return [*self.policy_servers(), *([self.eval_server()] if self.eval.every else [])]

    def devices(self) -> dict[str, str]:
        """Return the devices that the run uses, by key."""
        own = {"eval.device": self.eval.device} if self.eval.every and self.eval.device else {}
        return {"model.device": self.model.device} | own

    def home(self) -> Path:
        return Path(self.run.home).resolve()

    def cache(self) -> Path:
        """Return the folder for local copies of checkpoints that are stored under a URL."""
        return self.home() / "cache"

    def store_url(self) -> str:
        if self.store.url == "embedded":
            return f"sqlite:///{self.home() / 'store.db'}"
        return fill_secrets(self.store.url, "store.url")

    def broker_url(self) -> str:
        if self.broker.url == "embedded":
            return f"sqlite:///{self.home() / 'queue.db'}"
        return fill_secrets(self.broker.url, "broker.url")

    def tasks_url(self) -> str:
        if self.broker.tasks_url == "embedded":
            return f"filesystem://{self.home() / 'celery'}"
        return fill_secrets(self.broker.tasks_url, "broker.tasks_url")
