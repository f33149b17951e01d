"""The view `episode_policies` gives no version of external models.

Revision ID: 0031
Revises: 0030
"""

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    """Change no table: the upgrade recreates the views."""


def downgrade() -> None:
    """Change no table."""
