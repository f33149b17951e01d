"""Which teacher scored a trained episode, and the reverse KL divergence to it.

Revision ID: 0020
Revises: 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
        sa.Column("teacher", sa.String(200), nullable=True),
        sa.Column("teacher_checkpoint", sa.Text(), nullable=True),
        sa.Column("teacher_digest", sa.String(64), nullable=True),
        sa.Column("reverse_kl", sa.Float(53), nullable=True),
    ):
        op.add_column("update_groups", column)


def downgrade() -> None:
    for name in ("reverse_kl", "teacher_digest", "teacher_checkpoint", "teacher"):
        op.drop_column("update_groups", name)
