"""Transitions that were refused.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.String(length=200)


def upgrade() -> None:
    op.create_table(
        "refusals",
        sa.Column("refusal_id", BIG, autoincrement=True, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("transition", sa.String(length=20), nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("fence", sa.Integer(), nullable=True),
        sa.Column("found", TEXT, nullable=False),
        sa.Column("found_fence", sa.Integer(), nullable=True),
        sa.Column("refused_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"]),
        sa.PrimaryKeyConstraint("refusal_id"),
    )
    op.create_index("refusals_by_transition", "refusals", ["run_id", "transition"])


def downgrade() -> None:
    op.drop_index("refusals_by_transition", "refusals")
    op.drop_table("refusals")
