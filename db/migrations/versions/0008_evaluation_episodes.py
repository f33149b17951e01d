"""What an evaluation measured, item by item; evaluations that go on where they ended.

Revision ID: 0008
Revises: 0007
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

FLOAT = sa.Float(53)


def added() -> list[sa.Column[Any]]:
    """New columns of `evaluations`; a column belongs to one table, so they are made each time."""
    return [
        sa.Column("policy", sa.String(200), nullable=False, server_default=""),
        sa.Column("repeats", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("planned", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("cost", FLOAT, nullable=True),
        sa.Column("machine_s", FLOAT, nullable=False, server_default="0"),
        sa.Column("settings", sa.Text(), nullable=False, server_default=""),
        sa.Column("updated_at", FLOAT, nullable=True),
    ]


def upgrade() -> None:
    for column in added():
        op.add_column("evaluations", column)
    op.create_table(
        "evaluation_episodes",
        sa.Column(
            "evaluation_id",
            sa.String(200),
            sa.ForeignKey("evaluations.evaluation_id"),
            primary_key=True,
        ),
        sa.Column("item_id", sa.String(200), primary_key=True),
        sa.Column("repeat", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reward", FLOAT, nullable=False),
        sa.Column("score", FLOAT, nullable=False),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("sampled_tokens", sa.Integer(), nullable=False),
        sa.Column("cost", FLOAT, nullable=True),
        sa.Column("seconds", FLOAT, nullable=False),
        sa.Column("machine_s", FLOAT, nullable=False),
        sa.Column("ended_at", FLOAT, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("evaluation_episodes")
    with op.batch_alter_table("evaluations") as table:
        for column in added():
            table.drop_column(column.name)
