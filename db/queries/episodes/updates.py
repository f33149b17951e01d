"""Finds the update that trained on an episode."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from agentrl.core.types import UpdateState
from agentrl.db.models.updates import Update, UpdateGroup


@dataclass(frozen=True, slots=True)
class EpisodeUpdate:
    """An update that trained on an episode. `advantage`: of its loss tokens, null in old rows."""

    version: int
    checkpoint_id: str
    state: UpdateState
    loss_tokens: int
    advantage: float | None

    @property
    def is_live(self) -> bool:
        """Whether the update was not rolled back."""
        return self.state != UpdateState.ROLLED_BACK


def episode_updates(session: Session, episode_ids: Sequence[str]) -> dict[str, EpisodeUpdate]:
    """Return the update that trained on each episode; a rolled-back one only without another."""
    query = (
        select(
            UpdateGroup.episode_id,
            Update.version,
            Update.checkpoint_id,
            Update.state,
            UpdateGroup.loss_tokens,
            UpdateGroup.advantage,
        )
        .join(Update, Update.update_id == UpdateGroup.update_id)
        .where(UpdateGroup.episode_id.in_(episode_ids))
        .order_by(Update.is_live, Update.committed_at, Update.update_id)  # the last counts
    )
    rows = session.execute(query).all()
    return {row.episode_id: EpisodeUpdate(*row[1:]) for row in rows}
