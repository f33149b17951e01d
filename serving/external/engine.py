"""The policy server of an external model: one process, so that all workers share budget and rate.

consumes  messages (or token ids) over HTTP
produces  the model's turns, scores of tokens, rows of policy_servers, servings and spendings
waits for requests; checks every POLL_S whether the budget allows more
ends      when told to stop; without budget or key it closes its row and serves nothing
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sqlalchemy.orm import Session

from agentrl.core.config.secrets import secret
from agentrl.core.config.sections.policies import PolicyServer as ServerConfig
from agentrl.core.http.server import HttpServer
from agentrl.core.logging import get_logger
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import external_policies, policy_servers
from agentrl.db.registry.checkpoints import MESSAGES, LivePolicy
from agentrl.serving.engines import ServingConfig
from agentrl.serving.external.app import ExternalApp, ExternalModel
from agentrl.serving.external.scoring import TokenTexts
from agentrl.serving.external.upstream import Budget, Upstream
from agentrl.serving.registration import Registration
from agentrl.serving.scripted import limits_of
from agentrl.serving.served_checkpoints import ServedCheckpoints

POLL_S = 0.2
TOKENS = "external-tokens"  # the engine of one that takes and returns token ids

log = get_logger()


def serve_external(
    config: ServingConfig,
    server: ServerConfig,
    registration: Registration,
    changed: Callable[[], None],
    stop: threading.Event,
) -> None:
    """Serve until `stop`. `changed`: called when a serving row has changed.

    Raises ConfigError, and StoreError like `Registration`.
    """
    name, beaten = server.name, time.monotonic()
    run_id, store = registration.run_id, registration.store

    def spend(requests: int, tokens: int) -> None:
        store.transact(external_policies.record_spending(run_id, name, requests, tokens))

    spent = store.ask(lambda session: external_policies.spending(session, run_id, name))
    budget, served = Budget(server.external, spent, spend), ServedCheckpoints()
    with serve_model(config, server, ModelAccess(budget, served), stop) as url:
        registration.register(engine_of(server), url)
        try:
            track = ExternalTrack(registration, name, changed)
            while not stop.is_set():
                served.problem = budget.closed
                track.update(served)
                if time.monotonic() - beaten >= server.beat_s:
                    beaten = time.monotonic()
                    registration.beat(served)
                stop.wait(POLL_S)
        finally:
            served.close()
            registration.end()


class ExternalTrack:
    """The track of an external model, on its one checkpoint."""

    def __init__(self, registration: Registration, name: str, changed: Callable[[], None]) -> None:
        """Create the checkpoint's row. Raises StoreError."""
        self._store, self._server_id = registration.store, registration.server_id
        self._changed = changed
        self._track = external_policies.track_of(name)
        self._serving: bool | None = False  # None: not any more

        def require(session: Session) -> Checkpoint:
            row = external_policies.require_checkpoint(session, registration.run_id, name)
            session.refresh(row)
            session.expunge(row)
            return row

        self._checkpoint = self._store.transact(require)

    def update(self, served: ServedCheckpoints) -> None:
        """Serve until there is a problem; then log it once."""
        row, track, server_id = self._checkpoint, self._track, self._server_id
        if served.problem and self._serving is not None:
            served.retire(row.checkpoint_id, 0.0)
            self._store.transact(
                lambda s: policy_servers.end_serving(s, server_id, track, row.checkpoint_id)
            )
            log.error("External model disabled", track=track, error=served.problem)
            self._serving = None
            self._changed()
        elif self._serving is False:
            self._store.transact(lambda s: policy_servers.begin_serving(s, server_id, track, row))
            served.serve(track, row.checkpoint_id, row.version)
            log.info("Serving track", track=track)
            self._serving = True
            self._changed()


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """The budget and the model of a server. `spent_status`: HTTP status without budget."""

    budget: Budget
    served: ServedCheckpoints
    spent_status: int = 404  # draw another policy


@contextmanager
def serve_model(
    config: ServingConfig, server: ServerConfig, access: ModelAccess, stop: threading.Event
) -> Iterator[str]:
    """Serve the model on a socket; yields the URL. Raises ConfigError."""
    section, token = server.external, secret(server.token_env)
    with ExitStack() as stack:
        upstream = Upstream(section, secret(section.key_env), access.budget, stop)
        stack.callback(upstream.close)
        vocabulary = limits_of(Path(config.model.path)).vocabulary if section.tokens else 0
        patience_s = config.completion_timeout_s
        texts = TokenTexts(Path(config.model.path) / "tokenizer.json")
        voice = ExternalModel(
            upstream, texts, section.answer_tokens, patience_s, vocabulary, access.spent_status
        )
        http = HttpServer("policy", server.host, server.port, guarded=bool(token))
        stack.callback(http.close)
        http.start(ExternalApp(voice, access.served, token, section.concurrency).application())
        yield http.url


@contextmanager
def serve_for_evaluation(config: ServingConfig, server: ServerConfig) -> Iterator[LivePolicy]:
    """Serve the model for an evaluation in this process, with the whole budget.

    No other policy can be drawn, so a spent budget fails the rest of the evaluation at once.
    """
    budget, served = (
        Budget(server.external, (0, 0), lambda _requests, _tokens: None),
        ServedCheckpoints(),
    )
    track, stop = external_policies.track_of(server.name), threading.Event()
    served.serve(track, track, external_policies.VERSION)
    alone = msgspec.structs.replace(server, token_env="", host="127.0.0.1", port=0)
    try:
        with serve_model(config, alone, ModelAccess(budget, served, spent_status=402), stop) as url:
            yield LivePolicy(
                "eval", url, track, track, external_policies.VERSION, engine_of(server)
            )
    finally:
        stop.set()
        if budget.closed:
            log.error("External model disabled", track=track, error=budget.closed)


def engine_of(server: ServerConfig) -> str:
    """Return the engine name for the row, which tells workers to send messages or tokens."""
    return TOKENS if server.external.tokens else MESSAGES
