"""The reward of a branch, at its last step, where the task rewards branches.

Revision ID: 0021
Revises: 0020
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("steps", sa.Column("branch_reward", sa.Float(53), nullable=True))


def downgrade() -> None:
    op.drop_column("steps", "branch_reward")
