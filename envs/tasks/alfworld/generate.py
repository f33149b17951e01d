"""Generated items: an errand in a room of a few places, its things hidden among others.

Easy rooms name each kind once and without a number, and can always be solved in twelve turns by
searching the places in the order they are listed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import get_args

import msgspec

from agentrl.envs.tasks.alfworld.problem import (
    APPLIANCES,
    LAMP,
    AlfworldProblem,
    ErrandKind,
    ErrandSpec,
    RoomPlace,
    kind_of,
)
from agentrl.envs.tasks.generated import Drawn
from agentrl.envs.tasks.options import Difficulty

OPEN_PLACES = ("desk", "shelf", "table", "bed", "sofa", "counter")
CLOSED_PLACES = ("drawer", "cabinet", "safe", "box")
OPENING_APPLIANCES = ("fridge", "microwave")
THINGS = (
    "mug", "cup", "bowl", "plate", "pan", "pot", "apple", "egg", "potato", "tomato", "bread",
    "spoon",
)  # fmt: skip
KINDS: tuple[ErrandKind, ...] = get_args(ErrandKind)


@dataclass(frozen=True, slots=True)
class Size:
    """`things`: lost among them is what the errand needs. `most_closed`: places that open."""

    places: int
    things: tuple[int, int]
    most_closed: int
    most_wanted: int
    numbered: bool


SIZES: Mapping[Difficulty, Size] = {
    "easy": Size(places=4, things=(4, 5), most_closed=2, most_wanted=1, numbered=False),
    "medium": Size(places=5, things=(5, 6), most_closed=2, most_wanted=1, numbered=True),
    "hard": Size(places=6, things=(6, 7), most_closed=3, most_wanted=2, numbered=True),
}


def draw(difficulty: Difficulty, random: Random, number: int) -> Drawn:
    """Return content and split key of item `number`."""
    size = SIZES[difficulty]
    kind = KINDS[number % len(KINDS)]
    places = _places(kind, size, random)
    wanted = size.most_wanted if kind == "put" else 1
    targets = [place for place in places if place not in APPLIANCES.values()]
    target = LAMP if kind == "look" else random.choice(targets)
    thing, *others = random.sample(THINGS, random.randint(*size.things) - wanted + 1)
    kinds = [thing] * wanted + others
    elsewhere = [place for place in places if place != target]
    rooms = [random.choice(elsewhere) for _ in range(wanted)]
    rooms += [random.choice(places) for _ in others]
    if kind == "look":
        kinds.append(LAMP)
        rooms.append(random.choice([place for place in places if not _opens(place)]))
    named = dict(zip(places, _numbered(places, size), strict=True))
    errand = ErrandSpec(kind, thing, target, wanted)
    hidden = list(zip(_numbered(kinds, size), (named[room] for room in rooms), strict=True))
    answer = sorted(f"{kind_of(n)} {room}" for n, room in hidden if kind_of(n) in (thing, LAMP))
    random.shuffle(hidden)
    scene = AlfworldProblem(errand, [RoomPlace(named[p], _opens(p)) for p in places], dict(hidden))
    key = "\n".join([errand.text, " ".join(named.values()), *answer])
    return msgspec.to_builtins(scene), key


def _places(kind: ErrandKind, size: Size, random: Random) -> list[str]:
    """Draw places of distinct kinds, among them the appliance that the errand needs."""
    needed = [APPLIANCES[kind]] if kind in APPLIANCES else []
    closed_left = size.most_closed - sum(_opens(place) for place in needed)
    closed = random.sample(CLOSED_PLACES, random.randint(0, closed_left))
    open_places = random.sample(OPEN_PLACES, size.places - len(needed) - len(closed))
    places = [*needed, *closed, *open_places]
    random.shuffle(places)
    return places


def _opens(place: str) -> bool:
    return place in CLOSED_PLACES or place in OPENING_APPLIANCES


def _numbered(kinds: Sequence[str], size: Size) -> list[str]:
    """Names of things of these kinds: `mug 1`, `mug 2`; the bare kinds where sizes say so."""
    if not size.numbered:
        return list(kinds)
    return [f"{kind} {kinds[:place].count(kind) + 1}" for place, kind in enumerate(kinds)]
