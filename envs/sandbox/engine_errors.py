"""The errors of the Docker engine, as one line each."""

import contextlib
from collections.abc import Iterator

import docker.errors
import requests
from urllib3.exceptions import HTTPError

from agentrl.core.errors import EnvironmentFailure


@contextlib.contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Convert all errors of the engine and the connection to one-line EnvironmentFailures."""
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, HTTPError, OSError) as error:
        raise EnvironmentFailure(f"Docker engine: {what}: {cause_text(error)}") from error


def cause_text(error: BaseException) -> str:
    """Return the engine's own explanation, or else the system's error on the connection."""
    told: str = getattr(error, "explanation", None) or _of_the_system(error) or str(error)
    return told.strip().splitlines()[0][:300]


def _of_the_system(error: BaseException | None) -> str:
    """Return the outermost system error that is not a library's wrapper; empty: none."""
    while error is not None:
        if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
            return error.strerror or str(error)
        error = error.__cause__ or error.__context__
    return ""
