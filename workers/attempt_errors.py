"""Decide what an error costs: an attempt with a reason, or nothing."""

from agentrl.core.errors import (
    BrokerError,
    EnvironmentFailure,
    JudgeError,
    MessageRefused,
    PolicyError,
)
from agentrl.core.types import Reason, Status
from agentrl.workers.episode import EpisodeStopped, OutOfTime
from agentrl.workers.policies.pool import NoLivePolicy


def is_no_fault_of_the_attempt(error: Exception) -> bool:
    """Return whether the error affects every episode until a person or the supervisor fixes it."""
    absent_broker = isinstance(error, BrokerError) and not isinstance(error, MessageRefused)
    return absent_broker or isinstance(error, EpisodeStopped | NoLivePolicy)


def reason_of(error: Exception) -> tuple[Reason, Status]:
    """Return the failure reason for an error."""
    match error:
        case PolicyError():
            return Reason.POLICY_ERROR, Status.POLICY_ERROR
        case JudgeError():
            return Reason.JUDGE_ERROR, Status.JUDGE_ERROR
        case OutOfTime():
            return Reason.TIMEOUT, Status.TIMEOUT
        case MessageRefused():
            return Reason.PUBLISH_FAILED, Status.LOST
        case EnvironmentFailure() | _:
            return Reason.ENV_ERROR, Status.ENV_ERROR
