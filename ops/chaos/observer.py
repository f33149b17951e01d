"""Observes the run under test: which processes are alive and make progress.

rows of the store, looked at past the proxies · processes.json · /proc · HTTP
"""

import math
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from agentrl import broker
from agentrl.core.config.config import Config
from agentrl.core.errors import BrokerError, StoreError
from agentrl.db.queries import liveness
from agentrl.db.queries.kept_tokens import kept_tokens
from agentrl.db.queries.liveness import Attempt, Claim, Liveness
from agentrl.db.store import Store
from agentrl.ops.chaos.cluster import BROKER, Cluster, is_connected
from agentrl.ops.chaos.sampled_tokens import SampledTokens

ANSWER_S = 1.0  # for a server to answer
SAMPLED_S = 1.0  # between two looks at what policy servers have sampled
LOOKS, LOOK_S = 20, 0.05  # for the fewest tokens in vain
ENVS, POLICY = "envs", "policy"


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """Who a process was: its pid, and the name under which it wrote rows."""

    pid: int
    identity: str


@dataclass(slots=True)
class RunObserver:
    """One run under chaos; used by one thread. `seen`: the last look, None without a database.

    `claims`: what rows promised. `excused`: attempts whose promise means nothing, because the
    database may have lost their body. `ambiguous`: from when to when its clock said times twice, or
    not at all, or it lost what was served.
    """

    cluster: Cluster
    run_id: str
    store: Store
    seen: Liveness | None = None
    claims: set[Claim] = field(default_factory=set)
    excused: set[Attempt] = field(default_factory=set)
    ambiguous: list[tuple[float, float]] = field(default_factory=list)
    _sampled: SampledTokens = field(default_factory=SampledTokens)
    _sampled_at: float = -math.inf

    @property
    def config(self) -> Config:
        return self.cluster.config

    def look(self) -> None:
        """Read the rows again; what they promise is remembered."""

        def read(session: Session) -> tuple[Liveness, set[Claim]]:
            claims = liveness.claims_without_body(session, self.run_id)
            return liveness.read_liveness(session, self.run_id), claims

        try:
            self.seen, claims = self.store.ask(read, patience_s=0.0)
        except StoreError:
            self.seen = None
            return
        self.claims |= {claim for claim in claims if claim[:2] not in self.excused}
        if time.monotonic() - self._sampled_at > SAMPLED_S:  # of servers that may end before long
            self._sampled_at = time.monotonic()
            self._sampled.look(self.seen.servers)

    def forget_claims(self) -> None:
        """Expect no body of what runs or has finished: the database has lost commits.

        A recorder may have stored a body and acknowledged it, and only the commit is gone; the
        attempt is then played again after `dispatch.body_timeout_s`.
        """
        self.claims.clear()
        self.excused |= self.store.ask(
            lambda session: liveness.attempts_without_body(session, self.run_id)
        )

    def tokens_in_vain(self) -> int:
        """Return how many sampled tokens are not kept, and must be or were sampled again.

        Each look also counts what a worker has received and not stored yet, so that the fewest are
        nearest to the truth. Raises StoreError.
        """
        counts = []
        for _ in range(LOOKS):
            stored = self.store.ask(lambda session: kept_tokens(session, self.run_id))
            counts.append(self._sampled.look(self.seen.servers if self.seen else {}) - stored)
            time.sleep(LOOK_S)
        return min(counts)

    def pid(self, name: str) -> int | None:
        return self.cluster.pids().get(name)

    def mark(self, name: str) -> ProcessMark:
        """Who the process is now."""
        return ProcessMark(self.pid(name) or 0, self.identity(name))

    def identity(self, name: str) -> str:
        """The name under which the process of that name writes rows; empty: it has written none."""
        if self.seen is None:
            return ""
        match role_of(name):
            case "worker":
                return self.seen.workers.get(self.pid(name) or 0, "")
            case "policy":
                return self.seen.servers.get(name.removeprefix("policy-"), ("", ""))[0]
            case "trainer":
                return str(self.seen.epoch)
            case "dispatcher":
                return self.seen.dispatcher
        return str(self.pid(name) or "")

    def is_healthy(self, name: str, before: ProcessMark | None = None) -> bool:
        """Whether the process stands and answers; `before`: as another one than that."""
        pid = self.pid(name)
        if pid is None or self.seen is None:
            return False
        who = self.identity(name)
        if not who or (before and who == before.identity):
            return False
        match role_of(name):
            case "policy":
                return self._answers(f"{self.seen.servers[name.removeprefix('policy-')][1]}/health")
            case "envs":
                parts = urlsplit(self.config.envs.url)
                task = next(iter(self.config.tasks))
                return self._answers(f"http://{parts.netloc}/{task}/api/worker_status")
            case "recorder":
                proxy = self.cluster.proxies.get(BROKER)
                return proxy is None or is_connected(pid, proxy.port)
        return True

    def first_work_at(self, role: str, name: str, since: float) -> float | None:
        """When the role first worked after `since`; `name`: by which process, any where empty."""
        who = self.identity(name) if role in ("worker", "policy") and name else ""
        if self.seen is None or (name and role in ("worker", "policy") and not who):
            return None
        try:
            return self.store.ask(
                lambda session: liveness.first_work(session, self.run_id, role, since, who),
                patience_s=0.0,
            )
        except StoreError:
            return None

    def broker_answers(self) -> bool:
        try:
            broker.connect(self.cluster.direct.broker_url()).close()
        except BrokerError:
            return False
        return True

    @staticmethod
    def _answers(url: str) -> bool:
        """200, or a refusal of the token: whoever answers is there."""
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_S):  # noqa: S310 - a server of ours
                return True
        except urllib.error.HTTPError as error:
            return error.code == 401
        except OSError:
            return False


def role_of(name: str) -> str:
    """The role of a supervised process: policy-a, worker-0, trainer."""
    return name.partition("-")[0]
