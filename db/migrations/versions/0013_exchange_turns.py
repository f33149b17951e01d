"""Policy servers that exchange weights in place do so one after another.

Revision ID: 0013
Revises: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("policy_servers", sa.Column("exchanging", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("policy_servers", "exchanging")
