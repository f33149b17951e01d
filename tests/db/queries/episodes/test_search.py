"""Every filter on a store in which the answer is known; pages that join without a gap."""

from collections.abc import Iterator

import pytest
from run_transitions import World
from sqlalchemy import update

from agentrl.core.types import EpisodeState, Status
from agentrl.db.models.episodes import Episode, Step
from agentrl.db.queries.episodes.detail import episode_detail, model_directories
from agentrl.db.queries.episodes.filter import EpisodeFilter, Order
from agentrl.db.queries.episodes.search import (
    SEARCH_LIMITS,
    PageCursor,
    SearchLimits,
    SearchResult,
    search,
    tasks_of,
)


def found(
    world: World,
    sought: EpisodeFilter,
    at: PageCursor | None = None,
    limits: SearchLimits = SEARCH_LIMITS,
) -> SearchResult:
    with world.store.read() as session:
        return search(session, world.run_id, sought, at, limits)


def names(world: World, sought: EpisodeFilter) -> list[str]:
    """Episodes without the run's id, in order of their names."""
    return sorted(each.episode_id[len(world.run_id) + 1 :] for each in found(world, sought).rows)


def test_each_filter_passes_what_it_names_and_nothing_else(world: World) -> None:
    first, second = world.ready(0, (0.0, 1.0)), world.ready(1, (0.25, 0.5))
    (open_group,) = world.admit(2, size=2, task="kg")
    world.learn(1, first, 0.5)
    world.sql("UPDATE groups SET admitted_version = 7 WHERE position = 1")
    world.sql(
        "UPDATE steps SET answer = 'a Red_Lamp' WHERE episode_id = :e", e=second[0].episode_id
    )
    world.sql("UPDATE steps SET checkpoint_id = 'x' WHERE episode_id = :e", e=first[1].episode_id)
    world.sql(
        "UPDATE episodes SET status = 'task_limit' WHERE episode_id = :e", e=first[0].episode_id
    )
    all_four = ["dbbench-0-0", "dbbench-0-1", "dbbench-1-0", "dbbench-1-1"]
    expected = {
        EpisodeFilter(): all_four,
        EpisodeFilter(state=EpisodeState.QUEUED): ["kg-2-0", "kg-2-1"],
        EpisodeFilter(state=EpisodeState.FAILED): [],
        EpisodeFilter(task="dbbench"): all_four,
        EpisodeFilter(task="kg"): [],
        EpisodeFilter(status=Status.TASK_LIMIT): ["dbbench-0-0"],
        EpisodeFilter(item_id="item-1"): ["dbbench-1-0", "dbbench-1-1"],
        EpisodeFilter(reward_from=0.25, reward_to=0.5): ["dbbench-1-0", "dbbench-1-1"],
        EpisodeFilter(reward_to=0.0): ["dbbench-0-0"],
        EpisodeFilter(version=7): ["dbbench-1-0", "dbbench-1-1"],
        EpisodeFilter(checkpoint="x"): ["dbbench-0-1"],
        EpisodeFilter(learned_at=1): ["dbbench-0-0", "dbbench-0-1"],
        EpisodeFilter(learned_at=2): [],
        EpisodeFilter(words="red_lamp"): ["dbbench-1-0"],
        EpisodeFilter(words="red%lamp"): [],
        EpisodeFilter(item_id="item-0", checkpoint="x", learned_at=1): ["dbbench-0-1"],
        EpisodeFilter(item_id="item-1", checkpoint="x"): [],
    }
    for sought, episodes in expected.items():
        assert names(world, sought) == episodes, sought
    assert open_group.endswith("kg-2")


def test_a_row_says_which_update_learned_from_it_and_with_what_advantage(world: World) -> None:
    bodies = world.ready(0, (0.0, 1.0))
    assert [row.update for row in found(world, EpisodeFilter()).rows] == [None, None]
    world.learn(1, bodies, -0.75)
    lesson = found(world, EpisodeFilter()).rows[0].update
    assert lesson is not None
    assert (lesson.version, lesson.advantage, lesson.state) == (1, -0.75, "committed")
    world.sql("UPDATE updates SET state = 'rolled_back'")
    lesson = found(world, EpisodeFilter()).rows[0].update
    assert lesson is not None
    assert lesson.state == "rolled_back"
    assert names(world, EpisodeFilter(learned_at=1)) == []


@pytest.mark.parametrize("at_once", [True, False])
def test_pages_join_without_a_gap_or_a_double(world: World, at_once: bool) -> None:
    for position in range(3):
        world.ready(position, (0.0, 1.0, 0.0))
    if at_once:  # all at the same moment: the name decides
        world.sql("UPDATE episodes SET ended_at = 5.0")
    pages = list(paged(world, EpisodeFilter(), SearchLimits(page=2)))
    seen = [row.episode_id for page in pages for row in page.rows]
    assert len(seen) == len(set(seen)) == 9
    assert [len(page.rows) for page in pages] == [2, 2, 2, 2, 1]
    whole = [row.episode_id for row in found(world, EpisodeFilter()).rows]
    assert seen == whole


COLUMNS = {
    Order.SCORE: "score",
    Order.TURNS: "turns",
    Order.TOKENS: "tokens",
    Order.SECONDS: "ended_at",
}


@pytest.mark.parametrize("order", COLUMNS)
def test_the_largest_comes_first_page_after_page_and_what_has_none_last(
    world: World, order: Order
) -> None:
    bodies = world.ready(0, (0.0, 1.0, 0.0)) + world.ready(1, (0.0, 1.0, 0.0))
    without = bodies[4].episode_id
    for body, value in zip(bodies, (2, 7, 5, 4, None, 4), strict=True):
        column = COLUMNS[order] if value or order != Order.SECONDS else "started_at"
        values = {"started_at": 0.0, "ended_at": 3.0} | {column: value}
        with world.store.write() as session:
            session.execute(
                update(Episode).where(Episode.episode_id == body.episode_id).values(values)
            )

    pages = list(paged(world, EpisodeFilter(order=order), SearchLimits(page=2)))
    seen = [row.episode_id for page in pages for row in page.rows]
    assert seen == [bodies[place].episode_id for place in (1, 2, 5, 3, 0, 4)]
    assert [len(page.rows) for page in pages] == [2, 2, 2]
    names = {each.episode_id: each for page in pages for each in page.rows}
    assert names[without].seconds == (None if order == Order.SECONDS else names[seen[0]].seconds)


def test_only_so_many_of_the_newest_are_sorted(world: World) -> None:
    bodies = [body for position in range(3) for body in world.ready(position, (0.0, 1.0))]
    for at, body in enumerate(bodies):
        sets = "UPDATE episodes SET ended_at = :a, tokens = :t WHERE episode_id = :e"
        world.sql(sets, a=100 + at, t=9 - at, e=body.episode_id)
    page = found(world, EpisodeFilter(order=Order.TOKENS), None, SearchLimits(window=4))
    assert [row.tokens for row in page.rows] == [7, 6, 5, 4]
    assert (page.window, page.older, page.beyond) == (4, None, True)
    assert not found(world, EpisodeFilter(order=Order.TOKENS), None, SearchLimits(window=7)).beyond


def test_a_look_that_finds_nothing_says_where_to_go_on(world: World) -> None:
    bodies = [body for position in range(3) for body in world.ready(position, (0.0, 1.0))]
    oldest = bodies[0].episode_id
    world.sql("UPDATE steps SET call = 'rare' WHERE episode_id = :e", e=oldest)
    pages = list(paged(world, EpisodeFilter(words="RARE"), SearchLimits(words=2)))
    assert [len(page.rows) for page in pages] == [0, 0, 1, 0]
    assert pages[2].rows[0].episode_id == oldest
    assert all(page.window == 2 for page in pages)


@pytest.mark.parametrize("few", [0, 3, 5_000])
def test_what_an_item_a_checkpoint_and_an_update_share_is_found_however_many_each_has(
    world: World, few: int
) -> None:
    bodies = [body for position in range(3) for body in world.ready(position, (0.0, 1.0, 0.5))]
    world.learn(1, bodies[:6], 0.5)
    for body in (bodies[2], bodies[5], bodies[8]):
        name = body.episode_id
        world.sql("UPDATE steps SET checkpoint_id = 'x' WHERE episode_id = :e", e=name)
    limits = SearchLimits(few=few, window=4)
    for sought, expected in {
        EpisodeFilter(item_id="item-0", checkpoint="x"): {2},
        EpisodeFilter(item_id="item-1", learned_at=1): {3, 4, 5},
        EpisodeFilter(checkpoint="x", learned_at=1): {2, 5},
        EpisodeFilter(item_id="item-1", checkpoint="x", learned_at=1): {5},
        EpisodeFilter(item_id="item-2", learned_at=1): set(),
        EpisodeFilter(checkpoint="x"): {2, 5, 8},
    }.items():
        rows = [row for page in paged(world, sought, limits) for row in page.rows]
        assert {row.episode_id for row in rows} == {bodies[at].episode_id for at in expected}
        assert len(rows) == len(expected)


def test_of_few_episodes_all_are_looked_at_at_once(world: World) -> None:
    first = world.ready(0, (0.0, 1.0))
    for position in range(1, 4):
        world.ready(position, (0.0, 1.0))
    for body in first:  # long before the others
        world.sql("UPDATE episodes SET ended_at = 1.0 WHERE episode_id = :e", e=body.episode_id)
    sought = EpisodeFilter(item_id="item-0", order=Order.TOKENS)
    page = found(world, sought, None, SearchLimits(window=3, few=2))
    assert (len(page.rows), page.older, page.beyond) == (2, None, False)
    page = found(world, sought, None, SearchLimits(window=3, few=1))  # as any other filter
    assert (len(page.rows), page.older, page.beyond) == (0, None, True)


def test_only_steps_of_the_attempt_that_counts_are_searched(world: World) -> None:
    body = world.ready(0, (0.0, 1.0))[0]
    with world.store.write() as session:
        session.execute(
            update(Step).where(Step.episode_id == body.episode_id).values(call="gone", fence=9)
        )
    assert names(world, EpisodeFilter(words="gone")) == []


def test_another_run_in_the_same_store_is_not_seen(world: World) -> None:
    other = World.begin(world.store, "other")
    other.ready(0, (0.0, 1.0))
    assert found(world, EpisodeFilter()).rows == []
    assert found(world, EpisodeFilter(item_id="item-0")).rows == []
    with world.store.read() as session:
        assert tasks_of(session, world.run_id) == []
        name = session.query(Episode.episode_id).first()
        assert name is not None
        assert episode_detail(session, world.run_id, name[0]) is None


def test_tasks_are_those_of_its_groups(world: World) -> None:
    for task in ("kg", "alfworld", "dbbench"):
        world.admit(0, 1, task=task)
    with world.store.read() as session:
        assert tasks_of(session, world.run_id) == ["alfworld", "dbbench", "kg"]


def test_the_story_of_an_episode_has_its_steps_siblings_and_body(world: World) -> None:
    bodies = world.ready(0, (0.0, 1.0))
    world.learn(1, bodies, 0.5)
    with world.store.read() as session:
        told = episode_detail(session, world.run_id, bodies[1].episode_id)
        assert episode_detail(session, world.run_id, "none") is None
        places = model_directories(session, world.run_id, [f"{world.run_id}-v1"])
    assert told is not None
    assert (told.group_state, told.itself.member, told.itself.reward) == ("trained", 1, 1.0)
    assert [each.member for each in told.members] == [0, 1]
    assert [(deed.number, deed.track) for deed in told.steps] == [(0, "current"), (1, "lagged(4)")]
    assert [deed.reward for deed in told.steps] == [0.0, 1.0]
    assert told.itself.update is not None
    assert told.itself.update.advantage == 0.5
    assert told.sha256 == bodies[1].sha256
    assert told.body
    assert places == ["nowhere", "nowhere"]


def paged(world: World, sought: EpisodeFilter, limits: SearchLimits) -> Iterator[SearchResult]:
    """Page after page, as far as each says that there is an older one."""
    page = found(world, sought, None, limits)
    yield page
    while page.older is not None:
        page = found(world, sought, page.older, limits)
        yield page
