"""A policy server's row says why it serves less than it should.

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("policy_servers", sa.Column("problem", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("policy_servers", "problem")
