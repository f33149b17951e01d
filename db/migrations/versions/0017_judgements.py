"""The scores of judges, and what they replied.

Revision ID: 0017
Revises: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trajectories", sa.Column("judge", sa.Text(), nullable=True))
    op.add_column("trajectories", sa.Column("judge_score", sa.Float(53), nullable=True))
    op.add_column("trajectories", sa.Column("judge_reply", sa.Text(), nullable=True))


def downgrade() -> None:
    for name in ("judge_reply", "judge_score", "judge"):
        op.drop_column("trajectories", name)
