"""The view `accounting` names no body that a recorder may yet bring.

Views are made anew with every revision (db/admin/migrate.py).

Revision ID: 0012
Revises: 0011
"""

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """No table changes."""


def downgrade() -> None:
    """No table changes."""
