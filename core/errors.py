"""Errors name the boundary that was crossed.

Every error that a person can correct is an `AgentRLError`: its text is one line that names what is
wrong and where, `hint` says what to do about it. `main` prints both and exits with `exit_code`.
"""

import difflib
from collections.abc import Collection, Iterable


class AgentRLError(Exception):
    """A failure with a clear cause. `hint`: the next thing a person should do, may be empty."""

    exit_code = 2

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class ConfigError(AgentRLError):
    """The configuration holds something we do not understand."""


class StoreError(AgentRLError):
    """The database is unreachable, of another schema version, or refused a statement."""


class StoreUnavailable(StoreError):
    """The database is away for now: nothing is wrong with what was asked of it."""


class BrokerError(AgentRLError):
    """The message broker is unreachable or did not confirm."""


class BrokerUnavailable(BrokerError):
    """The message broker is away for now, or takes nothing: the same may work later."""


class MessageRefused(BrokerError):
    """The broker is there and will not take this message, however often it is offered."""


class MessageError(AgentRLError):
    """A message could not be decoded: unknown type, version or field, wrong hash, wrong length."""


class PolicyError(AgentRLError):
    """A policy server failed, refused the request or does not serve the checkpoint."""


class CheckpointError(AgentRLError):
    """A checkpoint is incomplete, corrupt or incompatible."""


class RankLost(AgentRLError):
    """Of the processes that learn together one ended, or does not answer: the others end, too."""

    exit_code = 4


class EnvironmentFailure(AgentRLError):
    """The environment broke (not the agent): the attempt is retried with a fresh environment."""


class ItemError(AgentRLError):
    """An item, a task name or a split does not exist or is malformed."""


def in_words(error: BaseException) -> str:
    """One of ours speaks for itself; any other is nothing without its type."""
    text = str(error)
    if text and isinstance(error, AgentRLError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error's sentence: the nearest known name, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"


def require_known(key: str, name: str, known: Collection[str]) -> None:
    """Raise ConfigError unless the name that a key of the configuration gives is a known one."""
    if name not in known:
        raise ConfigError(f"{key}: {name} is not known{nearest(name, known)}")
