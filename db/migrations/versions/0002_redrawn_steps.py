"""Steps say how many policies refused or died before one answered; a task's last groups are found.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    redrawn = sa.Column("redrawn", sa.Integer(), nullable=False, server_default="0")
    op.add_column("steps", redrawn)
    op.create_index("groups_by_ready", "groups", ["run_id", "task", "ready_at"])


def downgrade() -> None:
    op.drop_index("groups_by_ready", "groups")
    op.drop_column("steps", "redrawn")
