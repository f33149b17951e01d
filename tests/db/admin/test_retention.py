from collections.abc import Callable, Iterator

import pytest
from known_runs import BEGAN, write_known_runs
from sqlalchemy import text

from agentrl.core.types import RUN_OVER, RunState
from agentrl.db.admin.retention import (
    bodies_to_forget,
    forget_bodies,
    forget_groups,
    history_users,
    runs_to_forget,
)
from agentrl.db.store import Store

PROOFS = "SELECT kind FROM accounting UNION ALL SELECT 'unserved' FROM unserved_steps"


@pytest.fixture
def told(store: Store) -> Store:
    """The story."""
    write_known_runs(store)
    return store


def rows(store: Store, query: str) -> list[tuple[object, ...]]:
    with store.read() as session:
        return [tuple(row) for row in session.execute(text(query))]


def change(store: Store, statement: str) -> None:
    with store.write() as session:
        session.execute(text(statement))


def end(store: Store, run_id: str, at: float) -> None:
    """The run is over since then; what was open is cancelled."""
    over = f"state = '{RunState.STOPPED}', ended_at = {at}"
    change(store, f"UPDATE runs SET {over} WHERE run_id = '{run_id}'")  # noqa: S608
    for table in ("groups", "episodes"):
        ends = ", pending = 0, closed_at = 1" if table == "groups" else ""
        change(
            store,
            f"UPDATE {table} SET state = 'cancelled', reason = 'run_ended'{ends}"  # noqa: S608
            f" WHERE run_id = '{run_id}' AND state IN ('open', 'queued')",
        )


STORED = "SELECT episode_id FROM trajectories WHERE length(body) > 0 ORDER BY 1"


def test_bodies_of_groups_that_a_snapshot_covers_are_emptied_and_still_witness(
    told: Store,
) -> None:
    hashes = rows(told, "SELECT episode_id, sha256 FROM trajectories ORDER BY 1, 2")
    with told.read() as session:
        (found,) = bodies_to_forget(session, set())
        assert bodies_to_forget(session, {"story-1"}) == []
    assert (found.run_id, found.groups, found.episodes, found.bodies) == ("story-1", 2, 4, 4)
    assert found.bytes == 4 * len(b"body of g-a-0")
    assert sum(forget_bodies(told, "story-1", at_once=2)) == 4
    kept = {str(row[0]) for row in rows(told, STORED)}
    assert kept == {f"g-{name}-{m}" for name in "cdef" for m in (0, 1)} | {"g-h-1"}
    assert rows(told, "SELECT episode_id, sha256 FROM trajectories ORDER BY 1, 2") == hashes
    assert rows(told, PROOFS) == []
    with told.read() as session:
        assert bodies_to_forget(session, set()) == []


def test_without_a_snapshot_no_body_goes_while_the_run_goes_on(told: Store) -> None:
    change(told, "UPDATE checkpoints SET snapshot_path = NULL")
    assert sum(forget_bodies(told, "story-1", at_once=2)) == 0
    change(told, "UPDATE checkpoints SET snapshot_path = 'x' WHERE checkpoint_id = 'c2x'")
    assert sum(forget_bodies(told, "story-1", at_once=2)) == 0, "a snapshot that was rolled back"
    end(told, "story-1", BEGAN)
    assert sum(forget_bodies(told, "story-1", at_once=2)) == 14
    assert rows(told, PROOFS) == []


def test_runs_that_go_are_over_old_enough_and_beyond_the_newest(told: Store) -> None:
    clock = told.clock()

    def named(**rules: float | None) -> list[str]:
        with told.read() as session:
            return [each.run_id for each in runs_to_forget(session, **rules)]  # type: ignore[arg-type]

    assert named(keep=0, older_than_s=0) == [], "both run"
    end(told, "story-1", clock - 5_000)
    end(told, "fork-1", clock - 1_000)
    assert named() == []
    assert named(keep=0) == ["story-1", "fork-1"]
    assert named(keep=1) == ["story-1"]
    assert named(keep=2) == []
    assert named(older_than_s=2_000) == ["story-1"]
    assert named(keep=1, older_than_s=500) == ["story-1"]
    assert named(keep=1, older_than_s=9_000) == []
    end(told, "fork-1", clock - 1)
    assert named(keep=0) == ["story-1"], "its recorder may still store"
    with told.read() as session:
        (story,) = runs_to_forget(session, keep=0)
    assert (story.whole, story.groups, story.episodes, story.bodies) == (True, 8, 16, 14)


@pytest.mark.parametrize("state", RunState)
def test_a_history_stays_while_a_run_is_trained_on_it(told: Store, state: RunState) -> None:
    end(told, "story-1", BEGAN)
    change(told, f"UPDATE runs SET history_of = 'story-1', state = '{state}' WHERE name = 'fork'")  # noqa: S608
    with told.read() as session:
        users = history_users(session, "story-1")
        found = [*runs_to_forget(session, keep=0), *bodies_to_forget(session, set())]
    assert users == ([] if state in RUN_OVER else ["fork"])
    assert (found == []) is bool(users)
    assert sum(forget_bodies(told, "story-1")) == (0 if users else 14)


def test_a_run_goes_group_by_group_and_accounting_agrees_after_each(told: Store) -> None:
    end(told, "story-1", BEGAN)
    others = "SELECT * FROM checkpoints WHERE run_id = 'fork-1'"
    before = rows(told, others)
    steps = []
    for removed in forget_groups(told, "story-1", at_once=2):
        steps.append(removed)
        assert rows(told, PROOFS) == []
    assert steps == [4, 4, 4, 4]
    for table in ("groups", "episodes", "steps", "trajectories", "update_groups"):
        assert rows(told, f"SELECT COUNT(*) FROM {table}") == [(0,)]  # noqa: S608
    assert rows(told, "SELECT COUNT(*) FROM updates") == [(3,)]
    assert rows(told, others) == before


@pytest.mark.parametrize("state", ["running", "paused"])
def test_the_groups_of_a_run_that_is_not_over_are_never_removed(told: Store, state: str) -> None:
    change(told, f"UPDATE runs SET state = '{state}'")  # noqa: S608
    assert list(forget_groups(told, "story-1", at_once=2)) == []
    assert rows(told, "SELECT COUNT(*) FROM groups") == [(8,)]


@pytest.mark.parametrize(("work", "total"), [(forget_groups, 16), (forget_bodies, 14)])
def test_what_was_begun_and_ended_midway_goes_on(
    told: Store, work: Callable[..., Iterator[int]], total: int
) -> None:
    end(told, "story-1", BEGAN)
    first = next(work(told, "story-1", at_once=2))
    assert 0 < first < total
    assert first + sum(work(told, "story-1", at_once=2)) == total
