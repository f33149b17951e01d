"""Alarms of updates; the horizon of a group; the shares of tasks over time.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.String(length=200)
FLOAT = sa.Float(precision=53)


def upgrade() -> None:
    op.add_column("groups", sa.Column("horizon", sa.Integer(), nullable=True))
    op.create_table(
        "alarms",
        sa.Column("alarm_id", BIG, autoincrement=True, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("update_id", TEXT, nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("task", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("value", FLOAT, nullable=False),
        sa.Column("threshold", FLOAT, nullable=False),
        sa.Column("raised_at", FLOAT, nullable=False),
        sa.Column("ended_at", FLOAT, nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"]),
        sa.ForeignKeyConstraint(["update_id"], ["updates.update_id"]),
        sa.PrimaryKeyConstraint("alarm_id"),
    )
    op.create_index("alarms_by_name", "alarms", ["run_id", "task", "name"])
    op.create_table(
        "mixtures",
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("task", TEXT, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("share", FLOAT, nullable=False),
        sa.Column("progress", FLOAT, nullable=True),
        sa.Column("admitted", sa.Integer(), nullable=False),
        sa.Column("owed", FLOAT, nullable=False),
        sa.Column("decided_at", FLOAT, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"]),
        sa.PrimaryKeyConstraint("run_id", "number", "task"),
    )


def downgrade() -> None:
    op.drop_table("mixtures")
    op.drop_table("alarms")
    op.drop_column("groups", "horizon")
