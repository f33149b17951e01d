"""Stop rules: a run ends after a number of updates or hours, or when every task is solved."""

from sqlalchemy.orm import Session

from agentrl.db.queries import progress
from agentrl.db.queries.progress import RECENT_UPDATES
from agentrl.db.store import Store
from agentrl.db.transitions import item_streams
from agentrl.trainer.ledger_config import LedgerConfig


class StopRules:
    def __init__(self, config: LedgerConfig, run_id: str, store: Store) -> None:
        self._config = config
        self._run_id = run_id
        self._store = store

    def find_met_rule(self, version: int) -> str:
        """Return the rule that ends the run at this version; empty: none."""
        run = self._config.run
        if run.stop_updates is not None and version >= run.stop_updates:
            return f"{run.stop_updates} updates"
        if run.stop_hours is not None:
            hours = self._store.ask(lambda session: progress.hours(session, self._run_id))
            if hours >= run.stop_hours:
                return f"{run.stop_hours} hours"
        if run.stop_success is not None and self._is_solved(version, run.stop_success):
            return f"success {run.stop_success}"
        return ""

    def _is_solved(self, version: int, share: float) -> bool:
        """Return whether every task has that recent success, over enough groups."""
        tasks, fewest = self._config.tasks, self._config.min_groups

        def look(session: Session) -> tuple[int, dict[str, float]]:
            closed = progress.recent_groups(session, self._run_id, RECENT_UPDATES)
            return closed, item_streams.success_of_tasks(session, self._run_id, tasks, fewest)

        closed, success = self._store.ask(look)
        if version < RECENT_UPDATES and closed < RECENT_UPDATES * fewest:
            return False
        return all(success.get(task, -1.0) >= share for task in tasks)
