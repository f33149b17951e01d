"""The page *Episodes*: the list as the URL asks for it, one episode beside its siblings."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from running import ROOT
from world import World

from core import loading
from core.config import Config, Model, Task
from core.types import EpisodeState, Status
from dashboard.links import Here
from dashboard.looks import episodes
from db import migrate
from db.episode_search import Cursor, Filter, Found, Order
from db.store import open_store

EVERY = Filter(
    state=EpisodeState.FAILED,
    task="kg",
    status=Status.TIMEOUT,
    item_id="item-1",
    reward_from=-0.5,
    reward_to=1.0,
    version=0,
    checkpoint="run-v1",
    learned_at=3,
    words="100% sure & more",
    order=Order.SECONDS,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    migrate.upgrade(store)
    return World.begin(store)


def test_an_address_says_every_filter_and_is_read_back() -> None:
    assert episodes.asked(episodes.parameters_of(EVERY)) == EVERY
    assert episodes.parameters_of(Filter()) == {}
    assert episodes.asked({}) == Filter()


def test_what_an_address_says_that_means_nothing_is_passed_over() -> None:
    broken = {
        "state": "sleeping",
        "version": "x",
        "learned_at": "9" * 20,
        "reward_from": "much",
        "status": "",
        "task": "kg",
        "item_id": "a\0b",
    }
    assert episodes.asked(broken) == Filter(task="kg")
    for before in ("", "x", "1.5", "x~y", "~"):
        assert episodes.cursor({"before": before}) is None
    at = Cursor(1763772000.1234567, "run-kg-1~2-0")
    assert episodes.cursor({"before": episodes.before(at)}) == at


@pytest.mark.parametrize(
    "address",
    [
        {"version": "-1", "learned_at": str(2**60), "reward_from": "inf", "reward_to": "nan"},
        {"version": str(2**53), "learned_at": "-3", "reward_from": "-inf", "reward_to": "1e309"},
        {"before": "nan~x", "words": "\0", "checkpoint": "\0"},
    ],
)
def test_an_address_that_means_nothing_draws_the_list_as_it_is(
    world: World, show: Any, html: Any, address: dict[str, str]
) -> None:
    world.ready(0, (0.0, 1.0))
    page = html(show("episodes", world.store, world.run_id, run="run", **address))
    assert len(re.findall("&amp;episode=", page)) == 2


def test_the_largest_numbers_that_an_address_can_say_are_drawn(world: World, show: Any) -> None:
    largest = {"version": str(2**53 - 1), "reward_from": "-1.7e308", "reward_to": "1.7e308"}
    app = show("episodes", world.store, world.run_id, run="run", **largest)
    assert app.number_input[2].value == 2**53 - 1


def test_no_such_episode_is_said_of_all_that_were_looked_at_alone() -> None:
    at = Cursor(1.0, "x")
    assert episodes.nothing(Found([], None, 9, beyond=False), first=True) == "No such episode."
    for found, first in (
        (Found([], at, 9, beyond=False), True),
        (Found([], None, 9, beyond=True), True),
        (Found([], None, 9, beyond=False), False),
    ):
        assert "No such" not in episodes.nothing(found, first=first)


def test_a_run_without_episodes_says_so(world: World, show: Any) -> None:
    app = show("episodes", world.store, world.run_id)
    assert app.info[0].value == "No such episode."
    assert not app.error


def test_the_list_links_to_every_episode(world: World, show: Any, html: Any) -> None:
    bodies = world.ready(0, (0.0, 1.0))
    page = html(show("episodes", world.store, world.run_id, run="run"))
    for body in bodies:
        assert f"/episodes?run=run&amp;episode={body.episode_id}" in page
    assert "No such" not in page


def test_the_form_filters_and_the_address_says_how(world: World, show: Any, html: Any) -> None:
    world.ready(0, (0.0, 1.0))
    app = show("episodes", world.store, world.run_id, run="run")
    app.number_input[0].set_value(0.5)
    app.button[0].click().run()
    assert not app.exception
    assert len(re.findall(r"/episodes\?run=run&amp;episode=", html(app))) == 1
    assert "0.5" in app.query_params["reward_from"]
    assert "run" in app.query_params["run"]


@pytest.mark.slow
def test_the_order_is_chosen_stands_in_the_address_and_is_that_of_the_list(
    world: World, show: Any, html: Any
) -> None:
    bodies = world.ready(0, (0.0, 1.0))
    for body, tokens in zip(bodies, (9, 8), strict=True):
        sets = "UPDATE episodes SET tokens = :t WHERE episode_id = :e"
        world.sql(sets, t=tokens, e=body.episode_id)
    app = show("episodes", world.store, world.run_id, run="run")
    order = next(box for box in app.selectbox if box.label == "Order")
    assert order.options == ["newest", "score", "turns", "tokens", "seconds"]
    order.select("tokens")
    app.button[0].click().run()
    assert "tokens" in app.query_params["order"]
    assert any(each.value.startswith("The most tokens first") for each in app.caption)
    listed = re.findall(r"episode=([^\"]+)", html(app))
    assert listed == [body.episode_id for body in bodies]


def test_an_episode_shows_its_steps_and_its_siblings_side_by_side(
    world: World, show: Any, html: Any
) -> None:
    bodies = world.ready(0, (0.0, 1.0, 0.5))
    app = show("episodes", world.store, world.run_id, run="run", episode=bodies[0].episode_id)
    assert app.title[0].value == "Episode dbbench-0-0"
    said = [each.value for each in app.markdown]
    assert "**Step 0 · v0 current · 3 tokens · 0.10 s policy · 0.01 s environment**" in said
    assert any("No update learned from it" in each for each in said)
    assert app.multiselect[0].value == ["member 0", "member 1"]  # the reward that differs most
    assert any(each.startswith("**member 1** · completed · reward 1") for each in said)
    assert "⟨5⟩" in html(app)  # no tokenizer is there
    assert not app.warning
    for mode in ("advantage", "policy"):
        app.radio[0].set_value(mode).run()
        assert not app.exception
    assert "v0 lagged(4)" in html(app)


def test_tokens_are_read_with_the_runs_own_vocabulary(world: World, show: Any, html: Any) -> None:
    config = Config(tasks={"kg": Task()}, model=Model(path=str(ROOT / "models" / "tiny")))
    world.sql("UPDATE runs SET config = :c", c=loading.dumps(config))
    (body, _) = world.ready(0, (0.0, 1.0))
    page = html(show("episodes", world.store, world.run_id, episode=body.episode_id))
    assert "&lt;|assistant|&gt;" in page
    assert "⟨" not in page


def test_an_episode_that_has_not_ended_says_what_is_missing(world: World, show: Any) -> None:
    (group_id,) = world.admit(0, size=2)
    app = show("episodes", world.store, world.run_id, episode=f"{group_id}-0")
    assert app.info[0].value == "No step is recorded yet."


def test_a_body_that_is_not_the_one_its_row_names_is_not_shown(world: World, show: Any) -> None:
    (body, _) = world.ready(0, (0.0, 1.0))
    world.sql("UPDATE episodes SET body_sha256 = 'other' WHERE episode_id = :e", e=body.episode_id)
    app = show("episodes", world.store, world.run_id, episode=body.episode_id)
    assert "its row names other" in app.warning[0].value
    world.sql("UPDATE trajectories SET body = :b", b=b"\x00junk")
    assert (
        "cannot be read"
        in show("episodes", world.store, world.run_id, episode=body.episode_id).warning[0].value
    )
    world.sql("UPDATE trajectories SET body = :b", b=b"")
    app = show("episodes", world.store, world.run_id, episode=body.episode_id)
    assert app.warning[0].value.startswith("Its body was removed")


def test_an_episode_of_nobody_is_an_error_with_a_way_back(
    world: World, show: Any, html: Any
) -> None:
    app = show("episodes", world.store, world.run_id, run="run", episode="none")
    assert app.error[0].value == "Run run has no episode none."
    assert "/episodes?run=run" in html(app)


def test_calls_read_as_name_and_arguments() -> None:
    call = [{"name": "go", "arguments": {"to": "desk"}, "error": ""}, {"name": "x", "error": "no"}]
    assert episodes.readable(json.dumps(call)) == 'go {"to":"desk"}\nx {}  ✗ no'
    for other in ("plain text", "[1]", '"quoted"', "", "[" * 5_000):
        assert episodes.readable(other) in (other, "1")


def test_ids_are_shown_without_the_runs() -> None:
    assert Here("run-1", "run").short("run-1-kg-0") == "kg-0"
    assert Here("run-1", "run").short("other-kg-0") == "other-kg-0"
    assert Here("run-1", "a b").to("Episodes", episode="x") == "/episodes?run=a+b&episode=x"
