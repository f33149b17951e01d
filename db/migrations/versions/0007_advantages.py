"""What an episode's tokens were taught, and the index by which its item's groups are found.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("update_groups", sa.Column("advantage", sa.Float(53), nullable=True))
    op.create_index("groups_by_item", "groups", ["run_id", "item_id"])


def downgrade() -> None:
    op.drop_index("groups_by_item", "groups")
    op.drop_column("update_groups", "advantage")
