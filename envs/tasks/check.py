"""One figure of `agentrl envs check`, and the settings that it is measured with.

A module `check` beside a task's source may define two names:

    baselines(item, seed) -> Mapping[str, Expert]   `random` and `constant` policies of an item
    SHARED = {origin: {"one and other": count}}     contents its splits share, as published
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from agentrl.envs.contract import Message, ToolCall


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the check. `ok`: None if it could not be measured here; `value` then says why."""

    name: str
    value: str
    wanted: str = ""
    ok: bool | None = True


@dataclass(frozen=True, slots=True)
class Settings:
    """How to check. `data`: folder, empty for AGENTRL_DATA; `limit`: items a figure, 0 for all.

    `docker`, `image`: engine and image of sandboxes, empty for their defaults.
    """

    data: str = ""
    limit: int = 0
    seed: int = 0
    docker: str = ""
    image: str = ""


class RandomCall:
    """An Expert that makes one of `calls` at every turn, whatever it reads."""

    def __init__(self, calls: Sequence[ToolCall | str], seed: int = 0) -> None:
        self._calls, self._random = calls, Random(seed)

    def act(self, messages: Sequence[Message]) -> ToolCall | str:  # noqa: ARG002
        return self._random.choice(self._calls)
