"""Copies of groups: what they repeat, and the update that looked at the original.

Revision ID: 0018
Revises: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("groups", sa.Column("origin_id", sa.String(200), nullable=True))
    op.add_column("groups", sa.Column("batch", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("groups", "batch")
    op.drop_column("groups", "origin_id")
