"""Types that all packages share. Their values are stored in the database and in messages."""

from enum import StrEnum

CURRENT = "current"  # the track of the newest checkpoint
SOLVED = 1.0  # a score from which an episode counts as a success
ID_LENGTH = 200  # characters of an id or a name that the database's columns hold
ABORT = "abort"  # the finish_reason of a span whose policy went before its turn ended


class Status(StrEnum):
    """How an episode ended. The first three train; the others never become a reward."""

    COMPLETED = "completed"
    TASK_LIMIT = "task_limit"  # turns or tokens ran out
    INVALID_ACTION = "invalid_action"
    ENV_ERROR = "env_error"
    POLICY_ERROR = "policy_error"
    JUDGE_ERROR = "judge_error"  # no score that can be read
    TIMEOUT = "timeout"  # our wall clock, not a command's own
    LOST = "lost"  # the worker's lease ran out
    CANCELLED = "cancelled"  # a person's doing, or the end of the run


TRAINABLE = frozenset({Status.COMPLETED, Status.TASK_LIMIT, Status.INVALID_ACTION})
ABNORMAL = frozenset({Status.TASK_LIMIT, Status.INVALID_ACTION})


class RunState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"  # a stop rule was met
    EXHAUSTED = "exhausted"  # every item is retired
    STOPPED = "stopped"  # a person stopped it for good
    FAILED = "failed"


RUN_OVER = frozenset({RunState.COMPLETED, RunState.EXHAUSTED, RunState.STOPPED, RunState.FAILED})
MEASURED_FIRST = "version 0 is measured first"  # why a quickstart begins its run paused
RESCORING = "being rescored"  # why a run of copies is paused until it has all of them


class GroupState(StrEnum):
    OPEN = "open"  # some member has no terminal row yet
    READY = "ready"  # every member is terminal, enough of them trainable
    TRAINED = "trained"
    FILTERED = "filtered"  # zero spread, nothing to learn; or little, with trainer.keep_share
    STALE = "stale"
    FAILED = "failed"  # too few members survived
    CANCELLED = "cancelled"
    ROLLED_BACK = "rolled_back"


GROUP_OPEN = frozenset({GroupState.OPEN, GroupState.READY})
GROUP_UNTRAINED = frozenset({GroupState.FILTERED, GroupState.STALE})  # closed without an update


class EpisodeState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Reason(StrEnum):
    """The reason of an episode's or a group's final state."""

    ENV_ERROR = "env_error"
    POLICY_ERROR = "policy_error"
    JUDGE_ERROR = "judge_error"
    TIMEOUT = "timeout"
    LOST = "lost"
    BODY_LOST = "body_lost"  # the row says finished, its body never arrived
    BODY_DAMAGED = "body_damaged"  # what was stored cannot be read, or is not what the row names
    PUBLISH_FAILED = "publish_failed"  # the broker refused the body
    ZERO_SPREAD = "zero_spread"
    LOW_SPREAD = "low_spread"  # not among the groups that trainer.keep_share keeps
    TOO_FEW_SURVIVORS = "too_few_survivors"
    TOO_STALE = "too_stale"
    RUN_ENDED = "run_ended"
    ROLLED_BACK = "rolled_back"


class Transition(StrEnum):
    """State transitions that can be refused; the table `refusals` uses these names."""

    CLAIM = "claim"
    FINISH = "finish"
    RETRY = "retry"
    RELEASE = "release"
    LOSE_BODY = "lose_body"
    CONTINUE = "continue"  # of an episode from its recorded steps: it starts anew
    CLOSE = "close"  # of a ready group
    MOVE_RUN = "move_run"
    COMMIT = "commit"  # of an update
    ROLL_BACK = "roll_back"


class CheckpointState(StrEnum):
    LIVE = "live"  # on the surviving lineage, files present
    ROLLED_BACK = "rolled_back"
    DELETED = "deleted"  # files removed by retention
    EXTERNAL = "external"  # stands for a model of somebody else: no files, no lineage


class UpdateState(StrEnum):
    COMMITTED = "committed"
    SKIPPED = "skipped"  # non-finite loss or norm: the weights did not move
    ROLLED_BACK = "rolled_back"
