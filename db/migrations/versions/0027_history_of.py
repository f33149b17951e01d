"""Runs name the run on whose history they are trained.

Revision ID: 0027
Revises: 0026
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.add_column("runs", sa.Column("history_of", sa.String(200), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "history_of")
