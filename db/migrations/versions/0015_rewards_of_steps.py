"""The reward of each step. Null in rows from before: their episode has the reward of all.

Revision ID: 0015
Revises: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("steps", sa.Column("reward", sa.Float(53), nullable=True))


def downgrade() -> None:
    op.drop_column("steps", "reward")
