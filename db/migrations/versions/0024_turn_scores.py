"""The judge's score of the turn that a step ends.

Revision ID: 0024
Revises: 0023
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("steps", sa.Column("judge_score", sa.Float(53), nullable=True))


def downgrade() -> None:
    op.drop_column("steps", "judge_score")
