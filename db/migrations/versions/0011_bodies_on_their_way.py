"""Up to when the recorder has stored what was published, and which groups a trainer has taken.

Revision ID: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runs", sa.Column("recorded_until", sa.Float(53), nullable=False, server_default="0")
    )
    op.add_column("groups", sa.Column("taken_epoch", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("groups", "taken_epoch")
    op.drop_column("runs", "recorded_until")
