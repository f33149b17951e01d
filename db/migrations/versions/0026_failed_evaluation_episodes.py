"""Evaluations plan no episodes that the infrastructure failed; before, they never became complete.

Revision ID: 0026
Revises: 0025
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

EVALUATIONS = sa.table(
    "evaluations", sa.column("planned"), sa.column("episodes"), sa.column("metrics", sa.JSON)
)


def upgrade() -> None:
    planned, episodes = EVALUATIONS.c.planned, EVALUATIONS.c.episodes
    failed = EVALUATIONS.c.metrics["failed"].as_integer()
    all_ended = sa.and_(episodes > 0, planned > episodes, planned == episodes + failed)
    op.execute(sa.update(EVALUATIONS).where(all_ended).values(planned=episodes))


def downgrade() -> None:
    pass
