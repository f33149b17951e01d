"""The content of an item: an errand and its rooms.

A thing's kind is the first word of its name: `mug 1` is a mug.
"""

from typing import Literal

import msgspec

ErrandKind = Literal["put", "clean", "heat", "cool", "look"]

LAMP = "desklamp"
APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
MADE = {"clean": "clean", "heat": "hot", "cool": "cool"}


class ErrandSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bring `count` things of kind `thing`, treated as `kind` says, to a place of kind `target`.

    For `look`: hold one under the lamp; `target` is the lamp.
    """

    kind: ErrandKind
    thing: str
    target: str
    count: int = 1

    @property
    def text(self) -> str:
        if self.kind == "look":
            return f"look at {self.thing} under the {self.target}"
        if self.count > 1:
            return f"put two {self.thing} in {self.target}"
        if self.kind == "put":
            return f"put a {self.thing} in {self.target}"
        return f"put a {MADE[self.kind]} {self.thing} in {self.target}"


class RoomPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A receptacle. One that `opens` stands closed at first."""

    name: str
    opens: bool = False


class AlfworldProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`things`: where each thing is, by name; one of kind desklamp cannot be taken."""

    errand: ErrandSpec
    places: list[RoomPlace]
    things: dict[str, str]


def kind_of(name: str) -> str:
    return name.split(maxsplit=1)[0]
