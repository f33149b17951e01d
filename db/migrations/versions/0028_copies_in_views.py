"""Views leave out the times of copies, and the servings of deleted originals.

Revision ID: 0028
Revises: 0027
"""

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    """Change no table: the upgrade recreates the views."""


def downgrade() -> None:
    """Change no table."""
