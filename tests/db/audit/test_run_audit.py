"""A sound run has no finding; each thing that is planted is found, among the right ones."""

# ruff: noqa: S608 - the statements are the tests' own

from contextlib import closing

import pytest
from run_history import begun, ended, trained
from sqlalchemy import text
from sqlalchemy.orm import Session

from agentrl.db.audit import run_audit
from agentrl.db.audit.run_audit import AuditRules
from agentrl.db.queries.liveness import Claim
from agentrl.db.store import Store

RULES = AuditRules(max_attempts=1)
FIRST = "SELECT {} FROM update_groups ORDER BY episode_id LIMIT 1"


class Books:
    """A run of three updates on two tasks that is over, its checkpoints one line."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store, self.run_id = store, run_id

    def after(self, planted: str = "", claims: set[Claim] | None = None) -> list[tuple[str, str]]:
        """What the audit finds once `planted` was done to the rows, which is undone again."""
        with self.store.engine.connect() as connection, connection.begin() as transaction:
            for statement in filter(None, planted.split(";")):
                connection.execute(text(statement))
            with closing(Session(connection)) as session:
                found = run_audit.audit(session, self.run_id, claims or set(), RULES)
            transaction.rollback()
        return sorted({(finding.among, finding.kind) for finding in found})

    def first(self, column: str) -> str:
        with self.store.read() as session:
            return str(session.scalar(text(FIRST.format(column))))


@pytest.fixture
def books(store: Store) -> Books:
    again, run_id = begun(store.engine.url.render_as_string(hide_password=False))
    again.close()
    trained(store, run_id, 3)
    ended(store, run_id)
    with store.write() as session:
        session.execute(text("UPDATE groups SET position = position - 1"))
        for version in range(1, 4):
            line = {"p": f"{run_id}-v{version - 1:06d}", "c": f"{run_id}-v{version:06d}"}
            session.execute(
                text("UPDATE checkpoints SET parent_id = :p WHERE checkpoint_id = :c"), line
            )
    return Books(store, run_id)


def test_a_sound_run_has_no_finding_until_a_claim_s_body_never_came(books: Books) -> None:
    fence, sha256 = int(books.first("fence")), books.first("sha256")
    assert books.after() == []
    kept = (books.first("episode_id"), fence, sha256)
    assert books.after(claims={kept}) == []
    assert books.after(claims={(kept[0], fence, "another")}) == [("lost", "claim_without_body")]
    assert books.after(claims={(kept[0], fence + 1, sha256)}) == [("lost", "claim_without_body")]


EPISODE = f"({FIRST.format('episode_id')})"
UPDATE = "(SELECT update_id FROM updates WHERE version = 2)"
PLANTED = {
    "UPDATE groups SET position = 9 WHERE position = 2 AND task = 'dbbench'": [
        ("lost", "place_skipped")
    ],
    "UPDATE groups SET round = 1, position = 0 WHERE task = 'dbbench' AND position = 2": [
        ("trained_twice", "place_trained_twice"),
    ],
    f"DELETE FROM steps WHERE episode_id = {EPISODE}": [
        ("unbalanced", "steps_missing"),
        ("unbalanced", "tokens_differ"),
    ],
    f"UPDATE steps SET version = 1 WHERE episode_id = {EPISODE}": [
        ("unbalanced", "stranger_sampled"),
        ("unbalanced", "unserved_step"),
    ],
    f"UPDATE episodes SET attempts = 2 WHERE episode_id = {EPISODE}": [
        ("unbalanced", "too_many_attempts")
    ],
    "UPDATE runs SET version = 4": [
        ("unbalanced", "version_without_update"),
        ("unbalanced", "versions_differ"),
    ],
    f"UPDATE checkpoints SET trained_hash = '{'0' * 64}' WHERE version = 3": [
        ("unbalanced", "trained_hash_differs")
    ],
    f"UPDATE checkpoints SET trained_hash = '{'0' * 64}' WHERE version = 2": [
        ("unbalanced", "trained_hash_differs")
    ],
    f"UPDATE updates SET version = 3 WHERE update_id = {UPDATE}": [
        ("unbalanced", "checkpoint_without_update"),
        ("unbalanced", "version_trained_twice"),
        ("unbalanced", "versions_differ"),
    ],
    "UPDATE checkpoints SET parent_id = 'other' WHERE version = 3": [
        ("unbalanced", "lineage_broken")
    ],
    f"UPDATE episodes SET state = 'queued' WHERE episode_id = {EPISODE}": [
        ("lost", "episode_never_ended"),
        ("lost", "open_after_end"),
        ("unbalanced", "pending_differs"),
        ("unbalanced", "trained_unfinished"),
    ],
    f"DELETE FROM trajectories WHERE episode_id = {EPISODE}": [("lost", "trained_without_body")],
    f"UPDATE trajectories SET sha256 = 'x' WHERE episode_id = {EPISODE}": [
        ("lost", "body_unreadable"),
        ("lost", "trained_without_body"),
        ("unbalanced", "hash_differs"),
    ],
}


def test_an_episode_may_have_no_step_in_the_loss(books: Books) -> None:
    untrained = f"UPDATE steps SET trained = FALSE WHERE episode_id = {EPISODE};"
    counted = (
        f"UPDATE update_groups SET loss_tokens = 0 WHERE episode_id = {EPISODE};"
        f"UPDATE episodes SET loss_tokens = 0 WHERE episode_id = {EPISODE};"
        "UPDATE updates SET loss_tokens = loss_tokens - 10 WHERE update_id ="
        f" (SELECT update_id FROM update_groups WHERE episode_id = {EPISODE})"
    )
    assert books.after(untrained + counted) == [("unbalanced", "body_differs")]
    assert books.after(untrained) == [("unbalanced", "tokens_differ")]
    assert ("unbalanced", "tokens_differ") in books.after(counted)


def test_a_body_has_as_many_loss_tokens_as_the_live_update_that_trained_it(books: Books) -> None:
    fewer = f"UPDATE update_groups SET loss_tokens = 9 WHERE episode_id = {EPISODE};"
    assert ("unbalanced", "body_differs") in books.after(fewer)
    trainer = f"({FIRST.format('update_id')})"
    undone = f"UPDATE updates SET state = 'rolled_back' WHERE update_id = {trainer}"
    assert ("unbalanced", "body_differs") not in books.after(fewer + undone)


def test_steps_that_do_not_say_whether_they_are_in_the_loss_are_not_compared(books: Books) -> None:
    assert books.after(f"UPDATE steps SET trained = NULL WHERE episode_id = {EPISODE}") == []


def test_a_body_that_was_replaced_by_another_of_its_size_is_found(books: Books) -> None:
    other = (
        "(SELECT b.body FROM trajectories a JOIN trajectories b ON b.episode_id <> a.episode_id"
        f" AND b.body_bytes = a.body_bytes WHERE a.episode_id = {EPISODE} LIMIT 1)"
    )
    assert books.after(f"UPDATE trajectories SET body = {other} WHERE episode_id = {EPISODE}") == [
        ("lost", "body_unreadable")
    ]


def test_what_is_planted_is_found_and_nothing_else(books: Books) -> None:
    for planted, findings in PLANTED.items():
        assert books.after(planted) == findings, planted


def test_a_body_that_two_updates_learned_from_is_trained_twice(books: Books) -> None:
    columns = "episode_id, group_id, fence, sha256, loss_tokens"
    again = (
        f"INSERT INTO update_groups (update_id, {columns}) SELECT u.update_id, g.episode_id,"
        " g.group_id, g.fence, g.sha256, g.loss_tokens FROM update_groups g, updates u"
        f" WHERE g.episode_id = {EPISODE} AND u.update_id NOT IN"
        " (SELECT update_id FROM update_groups WHERE episode_id = g.episode_id) AND u.version ="
        " (SELECT MAX(version) FROM updates)"
    )
    assert books.after(again) == [
        ("trained_twice", "body_trained_twice"),
        ("trained_twice", "trained_twice"),
    ]


def test_a_place_that_was_rolled_back_is_repeated_before_new_ones(books: Books) -> None:
    rolled = (
        "UPDATE groups SET state = 'rolled_back' WHERE position = 0 AND task = 'dbbench';"
        "UPDATE updates SET state = 'rolled_back' WHERE version = 1;"
    )
    resumed = "UPDATE updates SET trainer_epoch = 2, started_at = {} WHERE version = 3;"
    late = "(SELECT MAX(admitted_at) FROM groups) + 1"
    finding = ("lost", "place_not_repeated")
    assert finding not in books.after(rolled), "no trainer has learned since"
    assert finding not in books.after(rolled + resumed.format(late)), "nor was a place admitted"
    assert finding in books.after(rolled + resumed.format(1))
    repeated = "UPDATE groups SET round = 1, position = 0 WHERE position = 2 AND task = 'dbbench'"
    assert finding not in books.after(rolled + resumed.format(1) + repeated)


def test_items_that_rest_leave_places_free(books: Books) -> None:
    moved = "UPDATE groups SET position = 9 WHERE position = 2 AND task = 'dbbench'"
    assert ("lost", "place_skipped") in books.after(moved)
    loose = AuditRules(max_attempts=1, whole_stream=False)
    with books.store.write() as session:
        session.execute(text(moved))
    with books.store.read() as session:
        assert run_audit.audit(session, books.run_id, (), loose) == []
