"""The content of an item, and the interface of the Python of an episode."""

from typing import NamedTuple, Protocol

import msgspec


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item. `short`: the question for a compact prompt. `code`: Python with the answer's value;
    empty: unknown.
    """

    question: str
    answer: str
    short: str = ""
    code: str = ""


class Execution(NamedTuple):
    """What code printed, and the last line of its error; empty: none."""

    text: str
    error: str = ""


class Interpreter(Protocol):
    """Runs an episode's code; variables stay from one call to the next. Not thread-safe."""

    def run(self, code: str) -> Execution:
        """Run the code. Its mistakes are part of the result. Raises EnvironmentFailure."""

    def close(self) -> None:
        """Free what it holds; safe to call twice."""
