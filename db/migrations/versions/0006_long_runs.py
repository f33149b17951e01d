"""Indexes for what is asked of a long run while it goes on (docs/measurements.md, Load).

Revision ID: 0006
Revises: 0005
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("groups_by_close", "groups", ["run_id", "closed_at"])
    op.create_index(
        "episodes_by_end",
        "episodes",
        ["run_id", "state", "ended_at", "task", "score", "loss_tokens"],
    )
    op.create_index("update_groups_by_group", "update_groups", ["group_id"])
    op.create_index("trajectories_by_arrival", "trajectories", ["run_id", "received_at"])
    op.drop_index("ix_trajectories_run_id", "trajectories")
    if op.get_bind().dialect.name == "postgresql":  # a sample of a long run finds too few episodes
        op.execute("ALTER TABLE steps ALTER COLUMN episode_id SET (n_distinct = -0.1)")


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE steps ALTER COLUMN episode_id RESET (n_distinct)")
    op.create_index("ix_trajectories_run_id", "trajectories", ["run_id"])
    op.drop_index("trajectories_by_arrival", "trajectories")
    op.drop_index("update_groups_by_group", "update_groups")
    op.drop_index("episodes_by_end", "episodes")
    op.drop_index("groups_by_close", "groups")
