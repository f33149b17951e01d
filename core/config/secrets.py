"""Secrets, which a configuration names and does not hold.

`${NAME}` in a URL is replaced when the URL is used, by the environment variable NAME or by the
content of the file that NAME_FILE names.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from urllib.parse import quote

from agentrl.core import logging
from agentrl.core.errors import ConfigError

MAX_NESTING = 3  # levels of variables whose values name other variables
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)\}")
_PRIVATE = re.compile(r"^AGENTRL_|PASSWORD|SECRET")
_PERCENT_CODE = re.compile(r"%[0-9A-Fa-f]{2}")
_LOGIN = re.compile(r"://[^/\s@]*:[^/\s@]*@")  # of a URL
_SECRET_FILE = re.compile(r"(PASSWORD|TOKEN|SECRET|KEY|URL)_FILE\Z")


def fill_secrets(url: str, where: str) -> str:
    """Replace each `${NAME}` in a URL by the value of NAME (see `_read_value`), also in that value.

    A value before the @ of a URL is percent-encoded here, so its variable contains the password
    itself. Raises ConfigError for a variable that is not set.
    """

    def value(match: re.Match[str]) -> str:
        found = _read_value(match["name"])
        if found is None:
            name = match["name"]
            raise ConfigError(f"{where}: ${{{name}}} is not set", hint=_read_exported(name))
        before, after = match.string[: match.start()], match.string[match.end() :]
        in_login = "://" in before and "/" not in before.partition("://")[2] and "@" in after
        if in_login and not _VARIABLE.search(found):
            if _PERCENT_CODE.search(found):
                _warn_encoded(where, match["name"])
            return quote(found, safe="")
        return found

    for _ in range(MAX_NESTING):
        replaced = _VARIABLE.sub(value, url)
        if replaced == url:
            break
        url = replaced
    return url


@cache
def _warn_encoded(where: str, variable: str) -> None:
    """Warn once per variable. It is no error: a password may contain such characters itself."""
    logging.configure_unless_done()
    logging.get_logger().warning(
        "Variable seems to contain a percent-encoded password; it must contain the password itself",
        variable=variable,
        of=where,
    )


def secret(variable: str) -> str:
    """Return the value of a variable (see `_read_value`); empty if no name is given.

    Raises ConfigError if the variable is not set or cannot be sent in a header.
    """
    value = (_read_value(variable) or "") if variable else ""
    if variable and not value:
        raise ConfigError(f"the variable {variable} is not set", hint=_read_exported(variable))
    if not (value.isascii() and value.isprintable() and value == value.strip()):
        raise ConfigError(  # the error of an HTTP library would print the value
            f"the value of {variable} cannot be sent in a header: it has a line break, a space at "
            "one end, or a character outside ASCII",
            hint="use printable ASCII characters only",
        )
    return value


def strip_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for foreign programs: no AGENTRL_ variable, password or login."""
    return {
        name: value
        for name, value in environ.items()
        if not _PRIVATE.search(name)
        and (not _LOGIN.search(value) or name.lower().endswith("_proxy"))
    }


def secret_files() -> list[str]:
    """Return the files that variables such as POSTGRES_PASSWORD_FILE name."""
    named = (path for name, path in os.environ.items() if _SECRET_FILE.search(name))
    return sorted({path for path in named if Path(path).is_file()})


def _read_value(name: str) -> str | None:
    """Return the environment variable NAME, or the content of the file that NAME_FILE names.

    The line end that editors add is removed. None: neither is set. Raises ConfigError.
    """
    if name in os.environ or f"{name}_FILE" not in os.environ:
        return os.environ.get(name)
    path = os.environ[f"{name}_FILE"]
    try:
        return Path(path).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(
            f"{name}_FILE: {path}: {why}", hint="name a readable UTF-8 file"
        ) from error


def _read_exported(name: str) -> str:
    return f"export {name}=…"
