"""A running hash that ties weights to bodies, sizes of bodies, leases of trainer and recorder.

Revision ID: 0009
Revises: 0008
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


DAMAGED = sa.text("LENGTH(body) > 0 AND LENGTH(body) <> body_bytes")


def leases() -> list[sa.Column[Any]]:
    """New columns of `runs`; a column belongs to one table, so they are made each time."""
    return [
        sa.Column("trainer", sa.String(200), nullable=False, server_default=""),
        sa.Column("trainer_until", sa.Float(53), nullable=False, server_default="0"),
        sa.Column("recorder", sa.String(200), nullable=False, server_default=""),
        sa.Column("recorder_until", sa.Float(53), nullable=False, server_default="0"),
    ]


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("trained_hash", sa.String(64), nullable=True))
    op.add_column("trajectories", sa.Column("body_bytes", sa.Integer(), nullable=True))
    op.create_index(
        "trajectories_damaged",
        "trajectories",
        ["run_id"],
        sqlite_where=DAMAGED,
        postgresql_where=DAMAGED,
    )
    for column in leases():
        op.add_column("runs", column)


def downgrade() -> None:
    op.drop_column("checkpoints", "trained_hash")
    op.drop_index("trajectories_damaged", "trajectories")
    op.drop_column("trajectories", "body_bytes")
    for column in leases():
        op.drop_column("runs", column.name)
