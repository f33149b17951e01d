"""All tables, as of revision 0026. The earlier revisions, 0001 to 0025, are merged into it.

A migration is frozen: it does not import the models, which say what the columns mean.
"""

from functools import partial

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = None

ID = sa.String(200)
ENUM = sa.String(20)
REASON = sa.String(40)
SHA256 = sa.String(64)
FLOAT = sa.Float(53)
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DAMAGED = sa.text("LENGTH(body) > 0 AND LENGTH(body) <> body_bytes")
OPEN = sa.text("live_until IS NULL")

column = partial(sa.Column, nullable=False)


def upgrade() -> None:
    op.create_table(
        "runs",
        column("run_id", ID, primary_key=True),
        column("name", ID, unique=True),
        column("config", sa.Text),
        column("seed", BIG),
        column("state", ENUM),
        column("reason", ID),
        column("version", sa.Integer),
        column("trainer_epoch", sa.Integer),
        column("dispatcher", ID),
        column("dispatcher_until", FLOAT),
        column("forked_from", ID, nullable=True),
        column("created_at", FLOAT),
        column("ended_at", FLOAT, nullable=True),
        column("trainer", ID, server_default=""),
        column("trainer_until", FLOAT, server_default="0"),
        column("recorder", ID, server_default=""),
        column("recorder_until", FLOAT, server_default="0"),
        column("recorded_until", FLOAT, server_default="0"),
    )
    op.create_table(
        "checkpoints",
        column("checkpoint_id", ID, primary_key=True),
        column("run_id", ID, sa.ForeignKey("runs.run_id")),
        column("version", sa.Integer),
        column("parent_id", ID, nullable=True),
        column("path", sa.Text),
        column("snapshot_path", sa.Text, nullable=True),
        column("state", ENUM),
        column("created_at", FLOAT),
        column("trained_hash", SHA256, nullable=True),
    )
    op.create_table(
        "groups",
        column("group_id", ID, primary_key=True),
        column("run_id", ID, sa.ForeignKey("runs.run_id")),
        column("task", ID),
        column("position", sa.Integer),
        column("round", sa.Integer),
        column("item_id", ID),
        column("size", sa.Integer),
        column("pending", sa.Integer),
        column("state", ENUM),
        column("reason", REASON, nullable=True),
        column("admitted_version", sa.Integer),
        column("admitted_at", FLOAT),
        column("ready_at", FLOAT, nullable=True),
        column("closed_at", FLOAT, nullable=True),
        column("horizon", sa.Integer, nullable=True),
        column("taken_epoch", sa.Integer, nullable=True),
        column("origin_id", ID, nullable=True),
        column("batch", sa.Integer, nullable=True),
        column("left_out_of", ID, nullable=True),
    )
    op.create_table(
        "episodes",
        column("episode_id", ID, primary_key=True),
        column("run_id", ID, sa.ForeignKey("runs.run_id")),
        column("group_id", ID, sa.ForeignKey("groups.group_id")),
        column("member", sa.Integer),
        column("task", ID),
        column("item_id", ID),
        column("state", ENUM),
        column("fence", sa.Integer),
        column("attempts", sa.Integer),
        column("worker_id", ID, nullable=True),
        column("due_at", FLOAT),
        column("reason", REASON, nullable=True),
        column("status", ENUM, nullable=True),
        column("reward", FLOAT, nullable=True),
        column("score", FLOAT, nullable=True),
        column("turns", sa.Integer, nullable=True),
        column("tokens", sa.Integer, nullable=True),
        column("loss_tokens", sa.Integer, nullable=True),
        column("body_sha256", SHA256, nullable=True),
        column("queued_at", FLOAT),
        column("started_at", FLOAT, nullable=True),
        column("ended_at", FLOAT, nullable=True),
    )
    op.create_table(
        "steps",
        column("episode_id", ID, primary_key=True),
        column("fence", sa.Integer, primary_key=True),
        column("number", sa.Integer, primary_key=True),
        column("run_id", ID),
        column("server_id", ID),
        column("track", ID),
        column("checkpoint_id", ID),
        column("version", sa.Integer),
        column("temperature", FLOAT),
        column("prompt_tokens", sa.Integer),
        column("token_start", sa.Integer),
        column("token_end", sa.Integer),
        column("requested_at", FLOAT),
        column("policy_s", FLOAT),
        column("env_s", FLOAT),
        column("finish_reason", ID),
        column("call", sa.Text),
        column("answer", sa.Text),
        column("redrawn", sa.Integer, server_default="0"),
        column("reward", FLOAT, nullable=True),
        column("parent", sa.Integer, nullable=True),
        column("branch_reward", FLOAT, nullable=True),
        column("trained", sa.Boolean, nullable=True),
        column("judge_score", FLOAT, nullable=True),
    )
    op.create_table(
        "trajectories",
        column("episode_id", ID, primary_key=True),
        column("fence", sa.Integer, primary_key=True),
        column("run_id", ID),
        column("sha256", SHA256),
        column("body", sa.LargeBinary),
        column("received_at", FLOAT),
        column("body_bytes", sa.Integer, nullable=True),
        column("judge", sa.Text, nullable=True),
        column("judge_score", FLOAT, nullable=True),
        column("judge_reply", sa.Text, nullable=True),
    )
    op.create_table(
        "journal",
        column("episode_id", ID, primary_key=True),
        column("fence", sa.Integer, primary_key=True),
        column("number", sa.Integer, primary_key=True),
        column("parent_fence", sa.Integer, nullable=True),
        column("attempt", sa.Integer),
        column("run_id", ID),
        column("body", sa.LargeBinary),
        column("written_at", FLOAT),
    )
    op.create_table(
        "updates",
        column("update_id", ID, primary_key=True),
        column("run_id", ID, sa.ForeignKey("runs.run_id")),
        column("version", sa.Integer),
        column("trainer_epoch", sa.Integer),
        column("checkpoint_id", ID, sa.ForeignKey("checkpoints.checkpoint_id")),
        column("state", ENUM),
        column("reason", ID),
        column("groups", sa.Integer),
        column("episodes", sa.Integer),
        column("loss_tokens", sa.Integer),
        column("metrics", sa.JSON),
        column("started_at", FLOAT),
        column("committed_at", FLOAT),
    )
    op.create_table(
        "update_groups",
        column("update_id", ID, sa.ForeignKey("updates.update_id"), primary_key=True),
        column("episode_id", ID, sa.ForeignKey("episodes.episode_id"), primary_key=True),
        column("group_id", ID, sa.ForeignKey("groups.group_id")),
        column("fence", sa.Integer),
        column("sha256", SHA256),
        column("loss_tokens", sa.Integer),
        column("advantage", FLOAT, nullable=True),
        column("teacher", ID, nullable=True),
        column("teacher_checkpoint", sa.Text, nullable=True),
        column("teacher_digest", SHA256, nullable=True),
        column("reverse_kl", FLOAT, nullable=True),
    )
    op.create_table(
        "alarms",
        column("alarm_id", BIG, primary_key=True),
        column("run_id", ID, sa.ForeignKey("runs.run_id")),
        column("update_id", ID, sa.ForeignKey("updates.update_id"), nullable=True),
        column("version", sa.Integer),
        column("task", ID),
        column("name", ID),
        column("value", FLOAT),
        column("threshold", FLOAT),
        column("raised_at", FLOAT),
        column("ended_at", FLOAT, nullable=True),
    )
    op.create_table(
        "mixtures",
        column("run_id", ID, sa.ForeignKey("runs.run_id"), primary_key=True),
        column("number", sa.Integer, primary_key=True),
        column("task", ID, primary_key=True),
        column("version", sa.Integer),
        column("share", FLOAT),
        column("progress", FLOAT, nullable=True),
        column("admitted", sa.Integer),
        column("owed", FLOAT),
        column("decided_at", FLOAT),
    )
    op.create_table(
        "refusals",
        column("refusal_id", BIG, primary_key=True),
        column("run_id", ID, sa.ForeignKey("runs.run_id")),
        column("transition", ENUM),
        column("subject", ID),
        column("fence", sa.Integer, nullable=True),
        column("found", ID),
        column("found_fence", sa.Integer, nullable=True),
        column("refused_at", FLOAT),
    )
    op.create_table(
        "evaluations",
        column("evaluation_id", ID, primary_key=True),
        column("run_id", ID, nullable=True, index=True),
        column("checkpoint_id", ID),
        column("version", sa.Integer, nullable=True),
        column("task", ID),
        column("split", ID),
        column("temperature", FLOAT),
        column("items", sa.Integer),
        column("episodes", sa.Integer),
        column("success", FLOAT),
        column("low", FLOAT),
        column("high", FLOAT),
        column("metrics", sa.JSON),
        column("created_at", FLOAT),
        column("policy", ID, server_default=""),
        column("repeats", sa.Integer, server_default="1"),
        column("planned", sa.Integer, server_default="0"),
        column("cost", FLOAT, nullable=True),
        column("machine_s", FLOAT, server_default="0"),
        column("settings", sa.Text, server_default=""),
        column("updated_at", FLOAT, nullable=True),
    )
    op.create_table(
        "evaluation_episodes",
        column("evaluation_id", ID, sa.ForeignKey("evaluations.evaluation_id"), primary_key=True),
        column("item_id", ID, primary_key=True),
        column("repeat", sa.Integer, primary_key=True),
        column("status", ENUM),
        column("reward", FLOAT),
        column("score", FLOAT),
        column("turns", sa.Integer),
        column("tokens", sa.Integer),
        column("prompt_tokens", sa.Integer),
        column("sampled_tokens", sa.Integer),
        column("cost", FLOAT, nullable=True),
        column("seconds", FLOAT),
        column("machine_s", FLOAT),
        column("ended_at", FLOAT),
    )
    op.create_table(
        "policy_servers",
        column("server_id", ID, primary_key=True),
        column("run_id", ID, sa.ForeignKey("runs.run_id"), index=True),
        column("name", ID),
        column("engine", ID),
        column("url", ID),
        column("lease_until", FLOAT),
        column("started_at", FLOAT),
        column("ended_at", FLOAT, nullable=True),
        column("problem", sa.Text, nullable=True),
        column("exchanging", sa.Text, nullable=True),
    )
    op.create_table(
        "servings",
        column("serving_id", BIG, primary_key=True),
        column("server_id", ID, sa.ForeignKey("policy_servers.server_id"), index=True),
        column("run_id", ID, index=True),
        column("track", ID),
        column("checkpoint_id", ID, sa.ForeignKey("checkpoints.checkpoint_id")),
        column("version", sa.Integer),
        column("live_from", FLOAT),
        column("live_until", FLOAT, nullable=True),
    )
    op.create_table(
        "spendings",
        column("run_id", ID, sa.ForeignKey("runs.run_id"), primary_key=True),
        column("name", ID, primary_key=True),
        column("requests", BIG),
        column("tokens", BIG),
    )
    op.create_table(
        "workers",
        column("worker_id", ID, primary_key=True),
        column("run_id", ID, sa.ForeignKey("runs.run_id"), index=True),
        column("host", ID),
        column("pid", sa.Integer),
        column("lease_until", FLOAT),
        column("started_at", FLOAT),
        column("ended_at", FLOAT, nullable=True),
    )
    op.create_table(
        "service_outages",
        column("run_id", ID, sa.ForeignKey("runs.run_id"), primary_key=True),
        column("process", ID, primary_key=True),
        column("service", ID, primary_key=True),
        column("since", FLOAT),
        column("until", FLOAT),
        column("error", sa.Text),
    )
    _create_indexes()
    if op.get_bind().dialect.name == "postgresql":  # a sample of a long run finds too few episodes
        op.execute("ALTER TABLE steps ALTER COLUMN episode_id SET (n_distinct = -0.1)")


def _create_indexes() -> None:
    """Create the indexes in this order: SQLite chooses the newer of two that serve a query."""
    op.create_index("checkpoints_by_version", "checkpoints", ["run_id", "state", "version"])
    op.create_index(
        "groups_by_position", "groups", ["run_id", "task", "position", "round"], unique=True
    )
    op.create_index("groups_by_state", "groups", ["run_id", "state", "ready_at"])
    op.create_index("episodes_by_group", "episodes", ["group_id", "member"], unique=True)
    op.create_index("episodes_by_state", "episodes", ["run_id", "state", "due_at"])
    op.create_index("episodes_by_worker", "episodes", ["worker_id", "state"])
    op.create_index("steps_by_checkpoint", "steps", ["checkpoint_id"])
    op.create_index("updates_by_version", "updates", ["run_id", "version"])
    op.create_index("update_groups_by_episode", "update_groups", ["episode_id"])
    op.create_index("servings_by_checkpoint", "servings", ["checkpoint_id"])
    op.create_index("groups_by_ready", "groups", ["run_id", "task", "ready_at"])
    op.create_index("alarms_by_name", "alarms", ["run_id", "task", "name"])
    op.create_index("refusals_by_transition", "refusals", ["run_id", "transition"])
    op.create_index("groups_by_close", "groups", ["run_id", "closed_at"])
    op.create_index(
        "episodes_by_end",
        "episodes",
        ["run_id", "state", "ended_at", "task", "score", "loss_tokens"],
    )
    op.create_index("update_groups_by_group", "update_groups", ["group_id"])
    op.create_index("trajectories_by_arrival", "trajectories", ["run_id", "received_at"])
    op.create_index("groups_by_item", "groups", ["run_id", "item_id"])
    op.create_index(
        "trajectories_damaged",
        "trajectories",
        ["run_id"],
        sqlite_where=DAMAGED,
        postgresql_where=DAMAGED,
    )
    op.create_index(
        "servings_open", "servings", ["server_id"], sqlite_where=OPEN, postgresql_where=OPEN
    )
