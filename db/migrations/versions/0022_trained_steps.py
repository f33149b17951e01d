"""Whether the tokens of a step are in the loss; null: unknown, recorded before this column.

Revision ID: 0022
Revises: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("steps", sa.Column("trained", sa.Boolean(), nullable=True))


def downgrade() -> None:
    op.execute("DROP VIEW IF EXISTS learned_tokens")  # it reads the column
    op.drop_column("steps", "trained")
