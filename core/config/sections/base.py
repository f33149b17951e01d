"""What the sections share: their base class, the types of keys, and the form of names."""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agentrl.core.errors import ConfigError

Dtype = Literal["float32", "bfloat16"]
Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Above0 = Annotated[float, Meta(gt=0.0)]
AtLeast0 = Annotated[float, Meta(ge=0.0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Above0

NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,59}\Z"  # names become folders, queues and columns
Name = Annotated[str, Meta(pattern=NAME)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the configuration. A component receives only its own section.

    The docstring under a key is its description in `agentrl config keys`.
    """


def check_name(name: str, where: str) -> None:
    """Raise ConfigError if `name` cannot be the name of a run."""
    if not re.search(NAME, name):
        rule = "use up to 60 letters, digits, `.`, `_` and `-`; the first is not `.` or `-`"
        raise ConfigError(f"{where}: {name!r} is not a valid name", hint=rule)
