"""The view `evaluation_results` gives means over items.

Revision ID: 0029
Revises: 0028
"""

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    """Change no table: the upgrade recreates the views."""


def downgrade() -> None:
    """Change no table."""
