"""Outages that processes without a supervisor wait for.

Revision ID: 0019
Revises: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "service_outages",
        sa.Column("run_id", sa.String(200), sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("process", sa.String(200), primary_key=True),
        sa.Column("service", sa.String(200), primary_key=True),
        sa.Column("since", sa.Float(53), nullable=False),
        sa.Column("until", sa.Float(53), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("service_outages")
