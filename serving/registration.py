"""The row of a policy server: registered, kept alive, ended."""

import uuid

from sqlalchemy.orm import Session

from agentrl.core.config.sections.policies import PolicyServer as ServerConfig
from agentrl.core.errors import StoreError, StoreUnavailable
from agentrl.core.logging import get_logger
from agentrl.db.models.processes import PolicyServer
from agentrl.db.registry import policy_servers
from agentrl.db.store import Store
from agentrl.serving.served_checkpoints import ServedCheckpoints

log = get_logger()


class Registration:
    """The row of one policy server of a run, which gets a new `server_id`."""

    def __init__(self, run_id: str, store: Store, server: ServerConfig) -> None:
        self.run_id = run_id
        self.store = store
        self.server_id = f"{server.name}-{uuid.uuid4().hex[:8]}"
        self._name, self._lease_s = server.name, server.lease_s

    def register(self, engine: str, url: str) -> None:
        """Add the row. `engine`: its name for workers. Raises StoreError."""

        def register(session: Session) -> None:
            row = PolicyServer(
                server_id=self.server_id,
                run_id=self.run_id,
                name=self._name,
                engine=engine,
                url=url,
            )
            policy_servers.register_server(session, row, lease_s=self._lease_s)

        self.store.transact(register)
        log.info("Policy server started", server_id=self.server_id, url=url)

    def beat(self, served: ServedCheckpoints, store: Store | None = None) -> None:
        """Extend the lease. `store`: for another thread, a connection of its own.

        Raises StoreUnavailable, and StoreError if the database lost rows of this server, which then
        has to start anew.
        """
        serves = {track: each.checkpoint_id for track, each in served.tracks().items()}

        def beat(session: Session) -> bool:
            policy_servers.beat_server(
                session, self.server_id, lease_s=self._lease_s, problem=served.problem
            )
            return policy_servers.has_rows(session, self.server_id, serves)

        if not (store or self.store).transact(beat):
            raise StoreError(
                f"the database lost rows of policy server {self._name}",
                hint="restart it, unless a supervisor does",
            )

    def end(self) -> None:
        """End the server's rows; a database error does not replace the original error."""
        try:
            self.store.transact(lambda s: policy_servers.end_server(s, self.server_id))
        except StoreUnavailable as error:
            log.warning("Lease not released; it expires by itself", error=str(error))
