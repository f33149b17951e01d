"""A store that fsspec reaches: every call ends, in time, with an answer or one clear error."""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from agentrl.core.config import with_secrets
from agentrl.core.errors import AgentRLError, CheckpointError
from agentrl.core.retry import FOREVER, Backoff, Retry
from agentrl.core.threads import call_bounded

T = TypeVar("T")
KEY = "run.checkpoints"
BACKOFF = Backoff(first_s=0.25, longest_s=8.0, stopping_s=0.0, from_failure=True)
NAMED = re.compile(r"\$\{\w+\}")  # a variable in a URL


class WeightsAway(CheckpointError):
    """The store of weights does not answer, or not in time; the same may work later."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """How long calls to a store of checkpoints may take, and how much of it is kept here.

    upload_s, fetch_s: how long after its first failure a file is sent, or fetched, again.
    call_s: for one call, plus its size divided by `slowest` bytes a second.
    last_s: how long a call may go on once we are told to stop.
    cached: checkpoints kept in a cache folder besides first ones, the last used.
    """

    upload_s: float = 60.0
    fetch_s: float = 20.0
    call_s: float = 60.0
    slowest: float = 2**20
    last_s: float = 3.0
    cached: int = 12


LIMITS = TransferLimits()


@dataclass(frozen=True, slots=True)
class Patience:
    """`seconds`: how long after its first failure a call is tried again. `stop`: and no longer."""

    seconds: float
    stop: threading.Event | None = None
    limits: TransferLimits = LIMITS


def opened(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it; some connect here.

    Raises CheckpointError, WeightsAway where another try may help, ConfigError.
    """
    from fsspec.core import url_to_fs

    expanded = with_secrets(url, KEY)
    try:
        fs, path = url_to_fs(expanded)
    except ImportError as error:
        raise CheckpointError(f"{KEY}: {url}: {error}", hint="pip install what it names") from error
    except ValueError as error:
        raise CheckpointError(
            f"{KEY}: {url}: {_words(url, error)}", hint="file:///FOLDER, s3://BUCKET/FOLDER, …"
        ) from error
    except Exception as error:  # fsspec raises whatever its parts raise
        raise _away(url, error) from error
    return fs, str(path).rstrip("/")


def tried(url: str, patience: Patience, work: Callable[[Any, str], T], *, size: int = 0) -> T:
    """The work's answer, tried again with growing pauses while another try may help.

    size: bytes that it moves. Raises CheckpointError where no try will help, WeightsAway where time
    ran out.
    """
    backoff = replace(
        BACKOFF, silent=patience.seconds < FOREVER
    )  # the caller tries again, or tells
    retry = Retry("checkpoints", is_away, stop=patience.stop, backoff=backoff)
    return retry.call(partial(_once, url, patience, work, size), limit_s=patience.seconds)


def is_away(error: BaseException) -> bool:
    return isinstance(error, WeightsAway)


def _once(url: str, patience: Patience, work: Callable[[Any, str], T], size: int) -> T:
    """Raises CheckpointError, WeightsAway."""
    limits = patience.limits
    allowed_s = limits.call_s + size / limits.slowest
    fs, path = opened(url)
    try:
        call = partial(work, fs, path)
        return call_bounded(call, allowed_s, stop=patience.stop, stopping_s=limits.last_s)
    except FileNotFoundError as error:
        raise CheckpointError(f"{url}: is not there: {_words(url, error)}") from error
    except PermissionError as error:
        fs.clear_instance_cache()  # else the next try has the same credentials
        raise _away(url, error) from error
    except Exception as error:  # fsspec raises whatever its parts raise
        if isinstance(error, AgentRLError) and not isinstance(error, WeightsAway):
            raise
        raise _away(url, error) from error


def _away(url: str, error: Exception) -> WeightsAway:
    """Also where access is denied: credentials expire and are renewed while processes wait."""
    text = _words(url, error)
    if isinstance(error, PermissionError):
        hint = (
            "renew the credentials, or give the run's processes the right to read and write there"
        )
        return WeightsAway(f"{url}: denied: {text}", hint=hint)
    hint = f"see that the store of {KEY} answers and has room; the run can be resumed"
    return WeightsAway(f"{url}: {text}", hint=hint)


def _words(url: str, error: Exception) -> str:
    """What a store says, which may repeat the URL, without the secrets that stand in it."""
    text = str(error) or type(error).__name__
    for named in NAMED.findall(url):
        if value := with_secrets(named, KEY):
            text = text.replace(value, named).replace(quote(value, safe=""), named)
    return text
