"""The tables. Times are seconds since the epoch on the database's clock (`agentrl.db.store.now`).

runs ─┬─ groups ── episodes ─┬─ steps            what the workers did
      │                      ├─ trajectories     bodies, kept by the recorder
      │                      └─ journal          sampled steps of what is not stored there yet
      ├─ updates ── update_groups                what the trainer learned from, with hashes
      │     └────── alarms                       what of it was beyond a threshold, from when
      ├─ mixtures                                the share of each task, from when
      ├─ checkpoints ── servings                 what was served where, from when until when
      ├─ refusals                                what came too late, or never should have come
      ├─ evaluations ── evaluation_episodes      what was measured, item by item
      └─ workers · policy_servers · spendings · service_outages
"""

from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from agentrl.core.types import (
    ID_LENGTH,
    CheckpointState,
    EpisodeState,
    GroupState,
    Reason,
    RunState,
    Status,
    Transition,
    UpdateState,
)
from agentrl.db.store import now

Big = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Enums are kept as their text, so that SQL reads well and old rows outlive new members."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: String(ID_LENGTH),
        float: Float(53),
        dict[str, Any]: JSON,
        RunState: String(20),
        GroupState: String(20),
        EpisodeState: String(20),
        CheckpointState: String(20),
        UpdateState: String(20),
        Reason: String(40),
        Status: String(20),
        Transition: String(20),
    }


class Run(Base):
    """One training. `trainer_epoch` fences trainers.

    `dispatcher`, `trainer`, `recorder` name who holds each lease, `…_until` how long it lasts.
    """

    __tablename__ = "runs"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    config: Mapped[str] = mapped_column(Text)
    seed: Mapped[int] = mapped_column(Big)
    state: Mapped[RunState]
    reason: Mapped[str] = mapped_column(default="")
    version: Mapped[int] = mapped_column(default=0)  # newest version of the live lineage
    trainer_epoch: Mapped[int] = mapped_column(default=0)
    dispatcher: Mapped[str] = mapped_column(default="")
    dispatcher_until: Mapped[float] = mapped_column(default=0.0)
    trainer: Mapped[str] = mapped_column(default="", server_default="")  # the epoch that beats
    trainer_until: Mapped[float] = mapped_column(default=0.0, server_default="0")
    recorder: Mapped[str] = mapped_column(default="", server_default="")
    recorder_until: Mapped[float] = mapped_column(default=0.0, server_default="0")
    # every body that was published before is stored, or never will be; 0: its recorder is of an
    # older version, which does not say so
    recorded_until: Mapped[float] = mapped_column(default=now(), server_default="0")
    forked_from: Mapped[str | None]
    created_at: Mapped[float]
    ended_at: Mapped[float | None]


class Group(Base):
    """The G episodes dispatched for one item. `position`: place in the task's item stream.

    A copy (transitions/trajectories/group_copies.py) has `origin_id`, the group that was played,
    and `batch`, the version of the update that looked at it; both are null if it was played.
    """

    __tablename__ = "groups"
    __table_args__ = (
        Index("groups_by_position", "run_id", "task", "position", "round", unique=True),
        Index("groups_by_state", "run_id", "state", "ready_at"),
        Index("groups_by_ready", "run_id", "task", "ready_at"),
        Index("groups_by_close", "run_id", "closed_at"),
        Index("groups_by_item", "run_id", "item_id"),
    )

    group_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    task: Mapped[str]
    position: Mapped[int]
    round: Mapped[int] = mapped_column(default=0)  # how often the position was rolled back before
    item_id: Mapped[str]
    horizon: Mapped[int | None]  # most turns of its episodes; null: the task's own limit
    size: Mapped[int]
    pending: Mapped[int]  # members without a terminal row
    state: Mapped[GroupState]
    taken_epoch: Mapped[int | None]  # of the trainer that holds its bodies and learns from it
    reason: Mapped[Reason | None]
    admitted_version: Mapped[int]
    admitted_at: Mapped[float]
    ready_at: Mapped[float | None]
    closed_at: Mapped[float | None]
    left_out_of: Mapped[str | None]  # the update that closed it without training on it
    origin_id: Mapped[str | None]
    batch: Mapped[int | None]


class Episode(Base):
    """One attempt after another at a group's item, until exactly one terminal row stands."""

    __tablename__ = "episodes"
    __table_args__ = (
        Index("episodes_by_group", "group_id", "member", unique=True),
        Index("episodes_by_state", "run_id", "state", "due_at"),
        Index("episodes_by_worker", "worker_id", "state"),
        # all that counts over a whole run need: they read no row of the table
        Index("episodes_by_end", "run_id", "state", "ended_at", "task", "score", "loss_tokens"),
    )

    episode_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.group_id"))
    member: Mapped[int]
    task: Mapped[str]
    item_id: Mapped[str]
    state: Mapped[EpisodeState]
    fence: Mapped[int] = mapped_column(default=1)
    attempts: Mapped[int] = mapped_column(default=0)
    worker_id: Mapped[str | None]
    due_at: Mapped[float]  # queued: send again; running: attempt deadline; finished: body deadline
    reason: Mapped[Reason | None]
    status: Mapped[Status | None]
    reward: Mapped[float | None]
    score: Mapped[float | None]
    turns: Mapped[int | None]
    tokens: Mapped[int | None]
    loss_tokens: Mapped[int | None]
    body_sha256: Mapped[str | None] = mapped_column(String(64))
    queued_at: Mapped[float]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]

    def seconds(self) -> float | None:
        """Of the attempt that ended it; None before that."""
        if self.started_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.started_at


class Step(Base):
    """One policy call and the environment's answer, written by the recorder from the body."""

    __tablename__ = "steps"
    __table_args__ = (Index("steps_by_checkpoint", "checkpoint_id"),)

    episode_id: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str]
    server_id: Mapped[str]
    track: Mapped[str]
    checkpoint_id: Mapped[str]
    version: Mapped[int]
    temperature: Mapped[float]
    prompt_tokens: Mapped[int]
    token_start: Mapped[int]
    token_end: Mapped[int]
    requested_at: Mapped[float]
    policy_s: Mapped[float]
    env_s: Mapped[float]
    finish_reason: Mapped[str]
    call: Mapped[str] = mapped_column(Text)
    answer: Mapped[str] = mapped_column(Text)
    redrawn: Mapped[int] = mapped_column(default=0, server_default="0")  # policies replaced
    reward: Mapped[float | None]  # null: recorded before rewards of steps were
    parent: Mapped[int | None]  # None: the step before; -1: none, a conversation begins
    branch_reward: Mapped[float | None]  # of the branch that ends with this step
    trained: Mapped[bool | None]  # whether its tokens are in the loss; null: recorded before it was
    judge_score: Mapped[float | None]  # of the turn that it ends, before weights; null: none


class StoredTrajectory(Base):
    """A body as it travelled. One whose fence is not its row's is never used."""

    __tablename__ = "trajectories"
    __table_args__ = (
        Index("trajectories_by_arrival", "run_id", "received_at"),
        # empty in a sound store, so that to look for damaged bodies costs nothing
        Index(
            "trajectories_damaged",
            "run_id",
            sqlite_where=text("LENGTH(body) > 0 AND LENGTH(body) <> body_bytes"),
            postgresql_where=text("LENGTH(body) > 0 AND LENGTH(body) <> body_bytes"),
        ),
    )

    episode_id: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str]
    sha256: Mapped[str] = mapped_column(String(64))
    body: Mapped[bytes] = mapped_column(LargeBinary)
    received_at: Mapped[float]
    body_bytes: Mapped[int | None]  # of `body` as it came; it stays when the body is pruned
    judge: Mapped[str | None] = mapped_column(Text)  # its model or function; null: none judged
    judge_score: Mapped[float | None]  # before weights; the mean of the turns' if those were scored
    judge_reply: Mapped[str | None] = mapped_column(Text)  # of a model; it stays, too


class JournaledStep(Base):
    """A sampled step of an attempt whose body is not stored yet (core/journal.py).

    `parent_fence`: of the attempt that stored the previous step; null for the first.
    """

    __tablename__ = "journal"

    episode_id: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    parent_fence: Mapped[int | None]
    attempt: Mapped[int]
    run_id: Mapped[str]
    body: Mapped[bytes] = mapped_column(LargeBinary)
    written_at: Mapped[float]


class Update(Base):
    """One optimizer step: the live version `version - 1` became `version`."""

    __tablename__ = "updates"
    __table_args__ = (Index("updates_by_version", "run_id", "version"),)

    update_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    version: Mapped[int]
    trainer_epoch: Mapped[int]
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoints.checkpoint_id"))
    state: Mapped[UpdateState]
    reason: Mapped[str] = mapped_column(default="")
    groups: Mapped[int]
    episodes: Mapped[int]
    loss_tokens: Mapped[int]
    metrics: Mapped[dict[str, Any]]
    started_at: Mapped[float]
    committed_at: Mapped[float]


class UpdateGroup(Base):
    """A member that an update learned from, with the hash of the body that was trained."""

    __tablename__ = "update_groups"
    __table_args__ = (
        Index("update_groups_by_episode", "episode_id"),
        Index("update_groups_by_group", "group_id"),
    )

    update_id: Mapped[str] = mapped_column(ForeignKey("updates.update_id"), primary_key=True)
    episode_id: Mapped[str] = mapped_column(ForeignKey("episodes.episode_id"), primary_key=True)
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.group_id"))
    fence: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    loss_tokens: Mapped[int]
    advantage: Mapped[float | None]  # of its loss tokens, as trained; null: none, or an old row
    # The teacher that scored its loss tokens; null: none did. An ID or a directory; SHA-256.
    teacher: Mapped[str | None]
    teacher_checkpoint: Mapped[str | None] = mapped_column(Text)
    teacher_digest: Mapped[str | None] = mapped_column(String(64))
    reverse_kl: Mapped[float | None]  # mean of log π − log π_teacher before the update, in nats


class Alarm(Base):
    """A metric crossed its threshold (`ended_at` null) or came back: a row each, never one between.

    `task`: empty for the whole update. `update_id`: null where it was seen between two updates.
    """

    __tablename__ = "alarms"
    __table_args__ = (Index("alarms_by_name", "run_id", "task", "name"),)

    alarm_id: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    update_id: Mapped[str | None] = mapped_column(ForeignKey("updates.update_id"))
    version: Mapped[int]
    task: Mapped[str]
    name: Mapped[str]
    value: Mapped[float]
    threshold: Mapped[float]
    raised_at: Mapped[float]
    ended_at: Mapped[float | None]


class Mixture(Base):
    """The share of groups that a task gets from a decision of the dispatcher to the next.

    `progress`: change of recent success, null where it was not asked or could not be told yet.
    `admitted`, `owed`: its groups until then, and how many it was behind its share.
    """

    __tablename__ = "mixtures"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int]
    share: Mapped[float]
    progress: Mapped[float | None]
    admitted: Mapped[int]
    owed: Mapped[float]
    decided_at: Mapped[float]


class Checkpoint(Base):
    """The weights at a version. Tracks follow rows that are LIVE, never max(version)."""

    __tablename__ = "checkpoints"
    __table_args__ = (Index("checkpoints_by_version", "run_id", "state", "version"),)

    checkpoint_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    version: Mapped[int]
    parent_id: Mapped[str | None]
    path: Mapped[str] = mapped_column(Text)
    snapshot_path: Mapped[str | None] = mapped_column(Text)  # a trainer can resume from here
    state: Mapped[CheckpointState]
    created_at: Mapped[float]
    # core/trained_hash.py; null: no body was trained before it, or a row of before this column
    trained_hash: Mapped[str | None] = mapped_column(String(64))


class PolicyServer(Base):
    """A policy server process. It is live while now < lease_until.

    `problem`: why it serves less than it should, in words; null or empty where it does not.
    `exchanging`: the track that it does not serve while it exchanges weights in place; null else.
    """

    __tablename__ = "policy_servers"

    server_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), index=True)
    name: Mapped[str]
    engine: Mapped[str]
    url: Mapped[str]
    lease_until: Mapped[float]
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    problem: Mapped[str | None] = mapped_column(Text)
    exchanging: Mapped[str | None] = mapped_column(Text)


class Serving(Base):
    """A checkpoint served by a server for a track, from when until when (null: still)."""

    __tablename__ = "servings"
    __table_args__ = (Index("servings_by_checkpoint", "checkpoint_id"),)

    serving_id: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=True)
    server_id: Mapped[str] = mapped_column(ForeignKey("policy_servers.server_id"), index=True)
    run_id: Mapped[str] = mapped_column(index=True)
    track: Mapped[str]
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoints.checkpoint_id"))
    version: Mapped[int]
    live_from: Mapped[float]
    live_until: Mapped[float | None]


class Spending(Base):
    """What a run has asked of an external model: tries, and tokens by the model's own count."""

    __tablename__ = "spendings"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)  # of the policy server
    requests: Mapped[int] = mapped_column(Big, default=0)
    tokens: Mapped[int] = mapped_column(Big, default=0)


class Worker(Base):
    """A process that drives episodes; it holds the leases of all its running rows."""

    __tablename__ = "workers"

    worker_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), index=True)
    host: Mapped[str]
    pid: Mapped[int]
    lease_until: Mapped[float]
    started_at: Mapped[float]
    ended_at: Mapped[float | None]


class ServiceOutage(Base):
    """A service that a process without a supervisor waits for.

    `until`: the row counts until then; the process extends it while it waits.
    """

    __tablename__ = "service_outages"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    process: Mapped[str] = mapped_column(primary_key=True)
    service: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[float]
    until: Mapped[float]
    error: Mapped[str] = mapped_column(Text)


class Refusal(Base):
    """A transition that changed nothing. `subject`: an episode, a group, or the run itself.

    `fence`: what it came with (a trainer: its epoch); `found`, `found_fence`: what stood instead.
    """

    __tablename__ = "refusals"
    __table_args__ = (Index("refusals_by_transition", "run_id", "transition"),)

    refusal_id: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    transition: Mapped[Transition]
    subject: Mapped[str]
    fence: Mapped[int | None]
    found: Mapped[str]
    found_fence: Mapped[int | None]
    refused_at: Mapped[float]


class Evaluation(Base):
    """One policy × task × split measured, under settings that decide what an episode is.

    It grows by items and repeats; the figures are of all its `evaluation_episodes`. `low`, `high`:
    95 % interval of the success rate. `run_id`, `version`: null of what is no checkpoint of a run.
    """

    __tablename__ = "evaluations"

    evaluation_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str | None] = mapped_column(index=True)
    checkpoint_id: Mapped[str]
    version: Mapped[int | None]
    policy: Mapped[str] = mapped_column(default="", server_default="")  # as people name it
    task: Mapped[str]
    split: Mapped[str]
    temperature: Mapped[float]
    items: Mapped[int]
    repeats: Mapped[int] = mapped_column(default=1, server_default="1")
    planned: Mapped[int] = mapped_column(default=0, server_default="0")  # episodes asked for
    episodes: Mapped[int]
    success: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    cost: Mapped[float | None]  # in the currency of its prices; null without prices
    machine_s: Mapped[float] = mapped_column(default=0.0, server_default="0")  # of wall clock
    settings: Mapped[str] = mapped_column(Text, default="", server_default="")  # JSON, sorted
    metrics: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    updated_at: Mapped[float | None]


class EvaluationEpisode(Base):
    """One episode of an evaluation that ended by its agent. Its key makes it the only one.

    `machine_s`: its share of the wall clock, which sums up over all that ran at once.
    """

    __tablename__ = "evaluation_episodes"

    evaluation_id: Mapped[str] = mapped_column(
        ForeignKey("evaluations.evaluation_id"), primary_key=True
    )
    item_id: Mapped[str] = mapped_column(primary_key=True)
    repeat: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[Status]
    reward: Mapped[float]
    score: Mapped[float]
    turns: Mapped[int]
    tokens: Mapped[int]  # of the whole trajectory
    prompt_tokens: Mapped[int]  # that were read, over all its steps
    sampled_tokens: Mapped[int]
    cost: Mapped[float | None]
    seconds: Mapped[float]  # from its first request to its end
    machine_s: Mapped[float]
    ended_at: Mapped[float]
