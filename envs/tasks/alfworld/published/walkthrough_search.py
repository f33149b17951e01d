"""An expert for published games that searches, because it does not know where things are.

    walkthrough ─▶ errand: what, how many, treated how, brought where ─┐
    habits: which places held such things in other games ──────────────┴▶ places, likeliest first

A walkthrough goes straight to a thing whose place an agent cannot know. A policy that learns only
from walkthroughs never learns to search.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agentrl.envs.tasks.alfworld.problem import LAMP, kind_of

TREATMENTS = ("clean", "heat", "cool")
LAMPS = (LAMP, "floorlamp")
_TAKE = re.compile(r"take (.+) from (.+)")
_MOVE = re.compile(r"move (.+) to (.+)")
_TREAT = re.compile(rf"({'|'.join(TREATMENTS)}) (.+) with (.+)")

Habits = Mapping[str, Mapping[str, int]]  # kind of thing ─▶ kind of place ─▶ times it was there


class Game(Protocol):
    """The part of `agentrl.envs.tasks.alfworld.published.game.Play` that the search uses."""

    won: bool

    @property
    def commands(self) -> Iterable[str]:
        """Return the admissible commands."""

    def do(self, command: str) -> str:
        """Apply a command and return the text."""


@dataclass(frozen=True, slots=True)
class WalkthroughErrand:
    """`thing`, `target`: kinds; no target: it is looked at under a lamp. `treatment`: or none."""

    thing: str
    count: int
    treatment: str
    appliance: str
    target: str


def read_errand(walkthrough: Sequence[str]) -> WalkthroughErrand | None:
    """Infer the errand from a walkthrough, or return None for an unknown form."""
    takes = [match for match in map(_TAKE.fullmatch, walkthrough) if match]
    moves = [match for match in map(_MOVE.fullmatch, walkthrough) if match]
    treatments = [match for match in map(_TREAT.fullmatch, walkthrough) if match]
    if not takes:
        return None
    return WalkthroughErrand(
        thing=kind_of(takes[0][1]),
        count=max(len(moves), 1),
        treatment=treatments[0][1] if treatments else "",
        appliance=treatments[0][3] if treatments else "",
        target=kind_of(moves[0][2]) if moves else "",
    )


def count_places(walkthroughs: Iterable[Sequence[str]]) -> Habits:
    """Count where the things of many games were found."""
    counts: dict[str, Counter[str]] = {}
    for walkthrough in walkthroughs:
        for take in filter(None, map(_TAKE.fullmatch, walkthrough)):
            counts.setdefault(kind_of(take[1]), Counter())[kind_of(take[2])] += 1
    return counts


def search_game(
    play: Game, walkthrough: Sequence[str], known: Habits, turns: int, *, is_careless: bool = False
) -> list[str]:
    """Search the fresh game `play`; return the commands that finish the errand.

    If the search does not finish, return the walkthrough. `turns`: the most that may be taken.
    `is_careless`: the treatment is left out, so the game may not be won.
    """
    errand = read_errand(walkthrough)
    if errand is None:
        return list(walkthrough)
    if is_careless:
        errand = replace(errand, treatment="")
    searcher = _Searcher(play, errand, known.get(errand.thing, {}))
    done: list[str] = []

    def is_finished() -> bool:
        return play.won or (is_careless and searcher.has_brought_all)

    while not is_finished() and len(done) < turns:
        command = searcher.next()
        if command not in play.commands:
            break
        play.do(command)
        done.append(command)
    return done if is_finished() else list(walkthrough)


class _Searcher:
    """Remembers what it has seen and proposes the next command, or an empty text."""

    def __init__(self, play: Game, errand: WalkthroughErrand, places: Mapping[str, int]) -> None:
        self._play = play
        self._errand = errand
        every = [each.removeprefix("go to ") for each in play.commands if each.startswith("go to ")]
        alike = Counter(map(kind_of, every))

        def likely(name: str) -> float:
            return places.get(kind_of(name), 0) / alike[kind_of(name)]

        self._order = sorted(every, key=likely, reverse=True)
        self._at = ""
        self._seen: set[str] = set()
        self._things: dict[str, str] = {}  # that may be taken ─▶ where each is
        self._lamp = ""  # the place of one
        self._thing = ""
        self._is_treated = False
        self._brought: set[str] = set()

    @property
    def has_brought_all(self) -> bool:
        return len(self._brought) >= self._errand.count

    def next(self) -> str:
        """Read an observation and return the next command."""
        commands = self._play.commands
        for take in filter(None, map(_TAKE.fullmatch, commands)):
            self._things[take[1]] = take[2]
        if any(_uses_lamp(command) for command in commands):
            self._lamp = self._at
        if self._at and f"open {self._at}" in commands and self._at not in self._seen:
            return f"open {self._at}"
        self._seen.add(self._at)
        return self._bring() if self._thing else self._fetch()

    def _fetch(self) -> str:
        for thing, place in self._things.items():
            if kind_of(thing) == self._errand.thing and thing not in self._brought:
                if f"take {thing} from {place}" not in self._play.commands:
                    return self._go(place)
                self._thing, self._is_treated = thing, False
                return f"take {thing} from {place}"
        return self._look_on()

    def _bring(self) -> str:
        errand = self._errand
        if errand.treatment and not self._is_treated:
            command = f"{errand.treatment} {self._thing} with {errand.appliance}"
            if command not in self._play.commands:
                return self._go(errand.appliance)
            self._is_treated = True
            return command
        if not errand.target:
            lamp = next(filter(_uses_lamp, self._play.commands), "")
            return lamp or (self._go(self._lamp) if self._lamp else self._look_on())
        for command in self._play.commands:
            move = _MOVE.fullmatch(command)
            if move and kind_of(move[2]) == errand.target:
                self._brought.add(self._thing)
                self._thing = ""
                return command
        places = [name for name in self._order if kind_of(name) == errand.target]
        opened = [name for name in places if f"open {name}" in self._play.commands]
        return f"open {opened[0]}" if opened else self._go(min(places, default=""))

    def _look_on(self) -> str:
        for place in self._order:
            if place in self._seen:
                continue
            for command in (self._go(place), f"open {place}"):
                if command in self._play.commands:
                    return command
            self._seen.add(place)  # it stands where the player is: what it holds can be taken
        return ""

    def _go(self, place: str) -> str:
        self._at = place
        return f"go to {place}"


def _uses_lamp(command: str) -> bool:
    return command.startswith("use ") and kind_of(command.removeprefix("use ")) in LAMPS
