"""The update that left a group out; before, only equal times told which one did.

Revision ID: 0023
Revises: 0022
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

FILL = """
UPDATE groups SET left_out_of = (
  SELECT MAX(update_id) FROM updates
  WHERE updates.run_id = groups.run_id AND updates.committed_at = groups.closed_at)
WHERE reason = 'low_spread' OR (reason = 'rolled_back' AND NOT EXISTS (
  SELECT 1 FROM update_groups WHERE update_groups.group_id = groups.group_id))
"""


def upgrade() -> None:
    op.add_column("groups", sa.Column("left_out_of", sa.String(200), nullable=True))
    op.execute(FILL)


def downgrade() -> None:
    op.drop_column("groups", "left_out_of")
