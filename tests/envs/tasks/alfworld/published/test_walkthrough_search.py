"""How an expert wins a game without knowing where things are."""

from collections.abc import Iterator, Sequence

import msgspec
import pytest
from textworld_comparison import pick_evenly

from agentrl.core.types import Status
from agentrl.envs.contract import Item
from agentrl.envs.play import play
from agentrl.envs.tasks.alfworld.playable import play_game
from agentrl.envs.tasks.alfworld.published import games, walkthrough_search
from agentrl.envs.tasks.alfworld.published.walkthrough_search import (
    count_places,
    read_errand,
    search_game,
)
from agentrl.envs.tasks.alfworld.task_source import AlfworldSource

PLACES = ("shelf 1", "drawer 1", "drawer 2", "sinkbasin 1", "table 1")


class Flat:
    """A flat in which drawers are closed; it is won once enough clean mugs are on the table."""

    def __init__(self, mugs: dict[str, str], count: int = 1, *, clean: bool = False) -> None:
        self.where = dict(mugs)
        self.log: list[str] = []
        self._count, self._clean = count, clean
        self._at = self._held = ""
        self._closed = {"drawer 1", "drawer 2"}
        self._cleaned: set[str] = set()

    @property
    def commands(self) -> Sequence[str]:
        return sorted(self._offered())

    def do(self, command: str) -> str:
        verb, *words = command.split()
        self.log.append(command)
        if verb == "go":
            self._at = " ".join(words[1:])
        elif verb == "open":
            self._closed.remove(self._at)
        elif verb == "take":
            self._held = " ".join(words[:2])
            del self.where[self._held]
        elif verb == "clean":
            self._cleaned.add(self._held)
        else:
            self.where[self._held], self._held = self._at, ""
        return ""

    @property
    def won(self) -> bool:
        there = [mug for mug, place in self.where.items() if place == "table 1"]
        return sum(mug in self._cleaned or not self._clean for mug in there) >= self._count

    def _offered(self) -> Iterator[str]:
        yield from (f"go to {place}" for place in PLACES if place != self._at)
        if self._at in self._closed:
            yield f"open {self._at}"
        elif self._held:
            yield f"move {self._held} to {self._at}"
            if self._at == "sinkbasin 1":
                yield f"clean {self._held} with sinkbasin 1"
        else:
            here = (mug for mug, place in self.where.items() if place == self._at)
            yield from (f"take {mug} from {self._at}" for mug in here)


class Corner(Flat):
    """A flat whose drawers stand in one place: who is at one of them cannot go to the other."""

    def do(self, command: str) -> str:
        if command.startswith("open"):
            self._closed.remove(command.removeprefix("open "))
            self.log.append(command)
            return ""
        return super().do(command)

    def _offered(self) -> Iterator[str]:
        there = {"drawer 1", "drawer 2"}
        if self._at not in there:
            yield from super()._offered()
            return
        yield from (f"go to {place}" for place in PLACES if place not in there)
        yield from (f"open {place}" for place in self._closed)
        here = (mug for mug, place in self.where.items() if place in there - self._closed)
        yield from (f"take {mug} from {self.where[mug]}" for mug in here)


KNOWN = {"mug": {"drawer": 6, "shelf": 1}}
STRAIGHT = ["go to shelf 1", "take mug 1 from shelf 1", "go to table 1", "move mug 1 to table 1"]


def test_likely_places_are_searched_first_and_closed_ones_opened() -> None:
    flat = Flat({"mug 1": "shelf 1"})
    found = search_game(flat, STRAIGHT, KNOWN, 20)
    drawers = ["go to drawer 1", "open drawer 1", "go to drawer 2", "open drawer 2"]
    assert found == flat.log == [*drawers, *STRAIGHT]


@pytest.mark.parametrize("place", ["drawer 2", "shelf 1"])
def test_a_place_where_one_stands_already_is_opened_and_the_search_goes_on(place: str) -> None:
    flat = Corner({"mug 1": place})
    found = search_game(flat, STRAIGHT, KNOWN, 20)
    assert flat.won
    assert found[:3] == ["go to drawer 1", "open drawer 1", "open drawer 2"]
    assert f"take mug 1 from {place}" in found


def test_a_place_where_one_stands_already_and_that_is_open_is_passed_over() -> None:
    flat = Corner({"mug 1": "shelf 1"})
    flat.do("open drawer 2")
    assert search_game(flat, STRAIGHT, KNOWN, 20) == [
        "go to drawer 1",
        "open drawer 1",
        *STRAIGHT,
    ]


def test_a_thing_that_is_met_on_the_way_is_taken_and_two_are_brought_one_by_one() -> None:
    flat = Flat({"mug 1": "shelf 1", "mug 2": "drawer 1"}, count=2)
    found = search_game(flat, [*STRAIGHT, "move mug 2 to table 1"], KNOWN, 20)
    taken = [command for command in found if command.startswith("take")]
    assert taken == ["take mug 2 from drawer 1", "take mug 1 from shelf 1"]
    assert flat.won


def test_what_the_errand_asks_for_is_done_to_the_thing_that_was_found() -> None:
    flat = Flat({"mug 2": "drawer 1"}, clean=True)
    walkthrough = ["take mug 1 from shelf 1", "clean mug 1 with sinkbasin 1", STRAIGHT[-1]]
    found = search_game(flat, walkthrough, KNOWN, 20)
    assert found[-4:] == [
        "go to sinkbasin 1",
        "clean mug 2 with sinkbasin 1",
        "go to table 1",
        "move mug 2 to table 1",
    ]


def test_a_careless_search_brings_the_thing_untreated_and_ends() -> None:
    flat = Flat({"mug 1": "shelf 1"}, clean=True)
    walkthrough = [*STRAIGHT[:2], "clean mug 1 with sinkbasin 1", *STRAIGHT[2:]]
    found = search_game(flat, walkthrough, {"mug": {"shelf": 1}}, 20, is_careless=True)
    assert found == STRAIGHT
    assert not flat.won


def test_a_careless_search_that_brings_nothing_in_time_is_played_by_the_walkthrough() -> None:
    flat = Flat({"mug 1": "shelf 1"}, clean=True)
    walkthrough = [*STRAIGHT[:2], "clean mug 1 with sinkbasin 1", *STRAIGHT[2:]]
    assert search_game(flat, walkthrough, KNOWN, 7, is_careless=True) == walkthrough


@pytest.mark.parametrize(
    ("walkthrough", "turns"),
    [(STRAIGHT, 7), (["dance"], 20), ([*STRAIGHT[:-1], "move mug 1 to moon 1"], 20)],
)
def test_what_a_search_does_not_win_in_time_is_played_by_the_walkthrough(
    walkthrough: list[str], turns: int
) -> None:
    assert search_game(Flat({"mug 1": "shelf 1"}), walkthrough, KNOWN, turns) == walkthrough


def test_habits_count_the_places_of_each_kind_of_thing() -> None:
    other = ["take mug 2 from drawer 3", "take pan 1 from stove 1", "take mug 1 from drawer 1"]
    assert count_places([STRAIGHT, other]) == {
        "mug": {"shelf": 1, "drawer": 2},
        "pan": {"stove": 1},
    }


def test_a_walkthrough_tells_its_errand() -> None:
    found = read_errand(
        ["take egg 1 from fridge 1", "heat egg 1 with microwave 1", "use desklamp 1"]
    )
    assert found == walkthrough_search.WalkthroughErrand("egg", 1, "heat", "microwave 1", "")
    assert read_errand(["look"]) is None


@pytest.mark.slow
def test_most_games_of_the_release_are_won_by_searching(release: games.Release) -> None:
    paths = pick_evenly([path for path in release.paths() if "/train/" in path], 60)
    found = [release.game(path) for path in paths]
    known = count_places(game.walkthrough for game in found)
    won = longer = 0
    for game in found:
        play = play_game(Item("alfworld", game.path, msgspec.to_builtins(game.packed)))
        commands = search_game(play, game.walkthrough, known, 20)
        won += play.won
        longer += len(commands) > len(game.walkthrough)
    assert won > 40
    assert longer > 20


@pytest.mark.slow
@pytest.mark.usefixtures("release")
def test_careless_experts_of_the_release_leave_most_treatments_out() -> None:
    """The others' searches bring nothing in time, so they play the walkthrough."""
    source = AlfworldSource({"origin": "agentbench", "expert": "search", "careless": 1.0})
    treated = [item for item in source.items("train") if "_then_" in item.item_id]
    outcomes = [play(source, i, source.expert(i, seed=0)) for i in pick_evenly(treated, 30)]
    careless = [outcome for outcome in outcomes if outcome.status == Status.INVALID_ACTION]
    assert len(careless) > 20
    assert sum(outcome.score for outcome in outcomes) == len(outcomes) - len(careless)


@pytest.mark.slow
@pytest.mark.usefixtures("release")
def test_careful_experts_of_the_release_err_as_often_as_careless_ones() -> None:
    source = AlfworldSource({"origin": "agentbench", "expert": "search", "careless": 0.5})
    item = next(item for item in source.items("train") if "_then_" in item.item_id)
    planned = source.expert(item, seed=0).act(())
    errors: dict[bool, list[bool]] = {True: [], False: []}
    for seed in range(60):
        is_careful = play(source, item, source.expert(item, seed=seed)).score == 1.0
        errs = source.expert(item, seed=seed, noise=0.5).act(()) != planned
        errors[is_careful].append(errs)
    assert all(0.2 < sum(found) / len(found) < 0.8 for found in errors.values())


@pytest.mark.slow
def test_a_source_of_generated_games_plays_the_walkthrough_of_a_published_one(
    release: games.Release,
) -> None:
    game = release.game(release.paths()[0])
    item = Item("alfworld", game.path, msgspec.to_builtins(game.packed))
    source = AlfworldSource({})
    assert source.expert(item, seed=0).act(()).arguments == {"action": game.walkthrough[0]}
