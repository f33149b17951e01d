"""An index of what is served now; before, each look read every serving row of a server's life.

Revision ID: 0025
Revises: 0024
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

OPEN = sa.text("live_until IS NULL")


def upgrade() -> None:
    op.create_index(
        "servings_open", "servings", ["server_id"], sqlite_where=OPEN, postgresql_where=OPEN
    )


def downgrade() -> None:
    op.drop_index("servings_open", "servings")
