"""Storage through fsspec. Every call returns in time, with a result or one clear error."""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from agentrl.checkpoints.manifest import CheckpointIOError
from agentrl.core.config.secrets import fill_secrets
from agentrl.core.errors import AgentRLError, CheckpointError
from agentrl.core.processes.threads import call_bounded
from agentrl.core.retry import FOREVER, Backoff, Retry

T = TypeVar("T")
KEY = "run.checkpoints"
BACKOFF = Backoff(first_s=0.25, longest_s=8.0, stopping_s=0.0, from_failure=True)
VARIABLE = re.compile(r"\$\{\w+\}")  # a variable in a URL


class WeightsAway(CheckpointError):
    """The checkpoint storage does not answer in time. The same call may succeed later."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Time limits of calls to checkpoint storage, and the size of the local cache.

    upload_s, fetch_s: how long a file is retried after its first failure.
    call_s: for one call, plus its size divided by `slowest` bytes per second.
    last_s: how long a call may continue after we are told to stop.
    cached: most recently used checkpoints kept in the cache, besides first ones.
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
    """`seconds`: how long a call is retried after its first failure. `stop`: ends the retries."""

    seconds: float
    stop: threading.Event | None = None
    limits: TransferLimits = LIMITS


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it; some file systems connect here.

    Raises CheckpointError, WeightsAway if another try may help, ConfigError.
    """
    from fsspec.core import url_to_fs

    expanded = fill_secrets(url, KEY)
    try:
        fs, path = url_to_fs(expanded)
    except ImportError as error:
        raise CheckpointError(
            f"{KEY}: {url}: {error}", hint="install the package that the error names"
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{KEY}: {url}: {_words(url, error)}",
            hint="use a URL such as file:///FOLDER or s3://BUCKET/FOLDER",
        ) from error
    except Exception as error:  # fsspec raises whatever its parts raise
        raise _away_error(url, error) from error
    return fs, str(path).rstrip("/")


def call_with_patience(
    url: str, patience: Patience, work: Callable[[Any, str], T], *, size: int = 0
) -> T:
    """Run `work`; retry it with growing pauses while another try may help.

    size: bytes that it transfers. Raises CheckpointError if no try can help, and WeightsAway when
    the time is over.
    """
    backoff = replace(
        BACKOFF, silent=patience.seconds < FOREVER
    )  # the caller tries again, or tells
    retry = Retry("checkpoints", WeightsAway, stop=patience.stop, backoff=backoff)
    return retry.call(partial(_once, url, patience, work, size), limit_s=patience.seconds)


def _once(url: str, patience: Patience, work: Callable[[Any, str], T], size: int) -> T:
    """Run `work` once. Raises CheckpointError, WeightsAway."""
    limits = patience.limits
    allowed_s = limits.call_s + size / limits.slowest
    fs, path = open_filesystem(url)
    try:
        call = partial(work, fs, path)
        return call_bounded(call, allowed_s, stop=patience.stop, stopping_s=limits.last_s)
    except FileNotFoundError as error:
        raise CheckpointIOError(f"{url} does not exist: {_words(url, error)}") from error
    except PermissionError as error:
        fs.clear_instance_cache()  # else the next try has the same credentials
        raise _away_error(url, error) from error
    except Exception as error:  # fsspec raises whatever its parts raise
        if isinstance(error, AgentRLError) and not isinstance(error, WeightsAway):
            raise
        raise _away_error(url, error) from error


def _away_error(url: str, error: Exception) -> WeightsAway:
    """Create a WeightsAway, also for denied access: credentials may be renewed meanwhile."""
    text = _words(url, error)
    if isinstance(error, PermissionError):
        hint = (
            "renew the credentials, or give the run's processes the right to read and write there"
        )
        return WeightsAway(f"access to {url} was denied: {text}", hint=hint)
    hint = f"see that the store of {KEY} answers and has room; the run can be resumed"
    return WeightsAway(f"{url}: {text}", hint=hint)


def _words(url: str, error: Exception) -> str:
    """Return an error text of the storage without the secrets of the URL."""
    text = str(error) or type(error).__name__
    for named in VARIABLE.findall(url):
        if value := fill_secrets(named, KEY):
            text = text.replace(value, named).replace(quote(value, safe=""), named)
    return text
