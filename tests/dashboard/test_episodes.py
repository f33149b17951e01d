"""The page *Episodes*: the list as the URL asks for it, one episode beside its siblings."""

import json
from pathlib import Path

import pytest
from run_transitions import World
from running import ROOT

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.tasks import Task
from agentrl.core.types import EpisodeState, Status
from agentrl.dashboard import vocabulary
from agentrl.dashboard.links import Here
from agentrl.dashboard.markup import Link
from agentrl.dashboard.viewmodels import episodes
from agentrl.db.admin import migrate
from agentrl.db.queries.episodes.detail import episode_steps
from agentrl.db.queries.episodes.filter import EpisodeFilter, Order
from agentrl.db.queries.episodes.search import PageCursor, SearchResult
from agentrl.db.store import open_store

EVERY = EpisodeFilter(
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
    assert episodes.filter_from_query(episodes.parameters_of(EVERY)) == EVERY
    assert episodes.parameters_of(EpisodeFilter()) == {}
    assert episodes.filter_from_query({}) == EpisodeFilter()


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
    assert episodes.filter_from_query(broken) == EpisodeFilter(task="kg")
    for before in ("", "x", "1.5", "x~y", "~"):
        assert episodes.cursor({"before": before}) is None
    at = PageCursor(1763772000.1234567, "run-kg-1~2-0")
    assert episodes.cursor({"before": episodes.before(at)}) == at


@pytest.mark.parametrize(
    "address",
    [
        {"version": "-1", "learned_at": str(2**60), "reward_from": "inf", "reward_to": "nan"},
        {"version": str(2**53), "learned_at": "-3", "reward_from": "-inf", "reward_to": "1e309"},
        {"before": "nan~x", "words": "\0", "checkpoint": "\0"},
    ],
)
def test_an_address_that_means_nothing_asks_for_the_list_as_it_is(address: dict[str, str]) -> None:
    assert episodes.filter_from_query(address) == EpisodeFilter()
    assert episodes.cursor(address) is None


def test_the_largest_numbers_that_a_form_holds_are_a_filter(world: World) -> None:
    bodies = world.ready(0, (0.0, 1.0))
    largest = {"reward_from": "-1.7e308", "reward_to": "1.7e308"}
    found = episodes.read_page(world.store, world.run_id, episodes.filter_from_query(largest), None)
    assert len(found.rows) == len(bodies)
    newest = episodes.filter_from_query({"version": str(2**53 - 1)})
    assert newest.version == 2**53 - 1
    assert episodes.read_page(world.store, world.run_id, newest, None).rows == []


def test_no_such_episode_is_said_of_all_that_were_looked_at_alone() -> None:
    at = PageCursor(1.0, "x")
    assert (
        episodes.nothing(SearchResult([], None, 9, beyond=False), first=True)
        == "No episode matches."
    )
    for found, first in (
        (SearchResult([], at, 9, beyond=False), True),
        (SearchResult([], None, 9, beyond=True), True),
        (SearchResult([], None, 9, beyond=False), False),
    ):
        assert "No such" not in episodes.nothing(found, first=first)


def test_every_row_links_to_its_episode(world: World) -> None:
    bodies = world.ready(0, (0.0, 1.0))
    found = episodes.read_page(world.store, world.run_id, EpisodeFilter(), None)
    rows = episodes.rows(found, Here(world.run_id, "run"), EpisodeState.FINISHED)
    links = {each.address for row in rows if isinstance(each := row["episode"], Link)}
    assert links == {f"/episodes?run=run&episode={body.episode_id}" for body in bodies}
    assert all("ended, UTC" in row for row in rows)


@pytest.mark.parametrize("state", [EpisodeState.QUEUED, EpisodeState.RUNNING])
def test_the_time_of_an_open_episode_is_when_it_was_queued(
    world: World, state: EpisodeState
) -> None:
    (group_id,) = world.admit(0)
    if state == EpisodeState.RUNNING:
        world.claimed(group_id)
    found = episodes.read_page(world.store, world.run_id, EpisodeFilter(state=state), None)
    rows = episodes.rows(found, Here(world.run_id, "run"), state)
    assert rows
    assert all(row.get("queued, UTC", "–") != "–" and "ended, UTC" not in row for row in rows)


def test_the_sibling_whose_reward_differs_most_is_shown_beside_it(world: World) -> None:
    bodies = world.ready(0, (0.0, 1.0, 0.5))
    told = episodes.read_episode(world.store, world.run_id, bodies[0].episode_id)
    assert told is not None
    other = episodes.contrast(told.itself, told.members)
    assert other is not None
    assert other.episode_id == bodies[1].episode_id
    assert episodes.read_episode(world.store, world.run_id, "none") is None


def test_tokens_are_read_with_the_runs_own_vocabulary(world: World) -> None:
    config = Config(tasks={"kg": Task()}, model=Model(path=str(ROOT / "models" / "tiny")))
    world.sql("UPDATE runs SET config = :c", c=config_loading.dumps(config))
    (body, _) = world.ready(0, (0.0, 1.0))
    told = episodes.read_episode(world.store, world.run_id, body.episode_id)
    assert told is not None
    found = vocabulary.find(episodes.directories(world.store, world.run_id, told))
    assert found == ROOT / "models" / "tiny" / "tokenizer.json"


def test_a_body_that_is_not_the_one_its_row_names_is_not_shown(world: World) -> None:
    (body, _) = world.ready(0, (0.0, 1.0))

    def shown() -> tuple[bool, str]:
        told = episodes.read_episode(world.store, world.run_id, body.episode_id)
        assert told is not None
        found, why = episodes.trajectory_of(told)
        return found is not None, why

    assert shown() == (True, "")
    world.sql("UPDATE episodes SET body_sha256 = 'other' WHERE episode_id = :e", e=body.episode_id)
    assert "its row says other" in shown()[1]
    world.sql("UPDATE trajectories SET body = :b", b=b"\x00junk")
    assert "cannot be read" in shown()[1]
    world.sql("UPDATE trajectories SET body = :b", b=b"")
    assert shown()[1].startswith("The trajectory was deleted")
    world.sql("DELETE FROM trajectories")
    assert shown() == (False, shown()[1])
    assert "is not stored" in shown()[1]


@pytest.mark.parametrize(
    ("parent", "said"),
    [(None, ""), (-1, " · begins a conversation"), (0, " · follows step 0")],
)
def test_a_step_of_a_branch_says_what_it_follows_and_what_the_branch_earned(
    world: World, parent: int | None, said: str
) -> None:
    body = world.ready(0)[0]
    world.sql("UPDATE steps SET parent = :parent WHERE number = 1", parent=parent)
    with world.store.read() as session:
        step = episode_steps(session, body.episode_id, body.fence)[1]
    assert episodes.headline(step).endswith(f"environment{said}")
    world.sql("UPDATE steps SET trained = NULL WHERE number = 1")
    with world.store.read() as session:
        step = episode_steps(session, body.episode_id, body.fence)[1]
    assert episodes.headline(step).endswith(f"environment{said}"), "an old row does not say"
    world.sql("UPDATE steps SET branch_reward = 0.5 WHERE number = 1")
    world.sql("UPDATE steps SET trained = FALSE WHERE number = 1")
    said += " · branch reward 0.5 · left out of the loss"
    with world.store.read() as session:
        step = episode_steps(session, body.episode_id, body.fence)[1]
    assert episodes.headline(step).endswith(f"environment{said}")


def test_a_step_of_an_external_model_has_no_version(world: World) -> None:
    body = world.ready(0)[0]
    world.sql("UPDATE steps SET version = -1, track = 'external(big)' WHERE number = 0")
    with world.store.read() as session:
        first, second = episode_steps(session, body.episode_id, body.fence)
    assert episodes.headline(first).startswith("Step 0 · external(big) · ")
    assert episodes.headline(second).startswith("Step 1 · v0 ")


def test_a_step_says_what_the_judge_scored_its_turn(world: World) -> None:
    body = world.ready(0)[0]
    world.sql("UPDATE steps SET judge_score = 0.0 WHERE number = 0")
    with world.store.read() as session:
        first, second = episode_steps(session, body.episode_id, body.fence)
    assert episodes.headline(first).endswith("environment · judge's score 0")
    assert "judge" not in episodes.headline(second)


def test_calls_read_as_name_and_arguments() -> None:
    call = [{"name": "go", "arguments": {"to": "desk"}, "error": ""}, {"name": "x", "error": "no"}]
    assert episodes.readable(json.dumps(call)) == 'go {"to":"desk"}\nx {}  ✗ no'
    for other in ("plain text", "[1]", '"quoted"', "", "[" * 5_000):
        assert episodes.readable(other) in (other, "1")


def test_ids_are_shown_without_the_runs() -> None:
    assert Here("run-1", "run").short("run-1-kg-0") == "kg-0"
    assert Here("run-1", "run").short("other-kg-0") == "other-kg-0"
    assert Here("run-1", "a b").to("Episodes", episode="x") == "/episodes?run=a+b&episode=x"
