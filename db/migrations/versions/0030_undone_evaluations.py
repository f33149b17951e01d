"""The views of evaluations leave out checkpoints that were rolled back.

Revision ID: 0030
Revises: 0029
"""

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    """Change no table: the upgrade recreates the views."""


def downgrade() -> None:
    """Change no table."""
