"""The content of an item: an errand and its rooms.

A thing's kind is the first word of its name: `mug 1` is a mug.
"""

from typing import Literal

import msgspec

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Item
from agentrl.envs.tasks import options

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


def read_scene(item: Item) -> AlfworldProblem:
    """Return a generated item's scene.

    Raises ItemError for unknown names or an impossible errand.
    """
    scene = options.read(item, AlfworldProblem)
    places = {place.name for place in scene.places}
    if not all(map(str.strip, (*places, *scene.things))):
        raise ItemError(f"item {item.item_id}: a place or a thing has no name")
    for thing, place in scene.things.items():
        if place not in places:
            raise ItemError(f"item {item.item_id}: {thing} is in {place}, which is not there")
    errand = scene.errand
    kinds = {kind_of(name) for name in (*places, *scene.things)}
    needed = {errand.thing, errand.target, *([LAMP] if errand.kind == "look" else [])}
    needed |= {APPLIANCES[errand.kind]} if errand.kind in APPLIANCES else set()
    if missing := sorted(needed - kinds):
        raise ItemError(f"item {item.item_id}: there is no {missing[0]}")
    return scene
