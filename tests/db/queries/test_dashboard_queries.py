"""What the dashboard asks, on both databases: a run of two tasks whose success grows by version."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from backends import DATABASES
from run_history import TASKS, begun, evaluation, trained
from sqlalchemy import update
from sqlalchemy.orm import Session

from agentrl.core.statistics import ClusterSums
from agentrl.core.types import (
    CheckpointState,
    EpisodeState,
    GroupState,
    RunState,
    Status,
    Transition,
    UpdateState,
)
from agentrl.db.models.evaluations import EvaluationEpisode
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint, Update
from agentrl.db.queries import (
    balance,
    comparison,
    curves,
    delays,
    progress,
    task_outcomes,
    tracker_cursor,
)
from agentrl.db.queries.tracker_cursor import TrackerCursor
from agentrl.db.registry import leases, lineage
from agentrl.db.store import Store, now
from agentrl.db.transitions import dispatcher_lease, evaluations, lifecycle, refusals, runs
from agentrl.db.transitions.groups import NewGroup, admit_groups

Learnt = tuple[Session, str]


@pytest.fixture(scope="module", params=DATABASES)
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Store, str]]:
    """A run of four updates, each of a group a task: 1, 2, 3, 4 of 4 solved. Nobody changes it."""
    if request.param == "sqlite":
        path: Path = tmp_path_factory.mktemp("played") / "store.db"
        shutil.copy(request.getfixturevalue("migrated_sqlite"), path)
        url = f"sqlite:///{path}"
    else:
        url = request.getfixturevalue("migrated_postgres")
    store, run_id = begun(url)
    trained(store, run_id, 4)
    with closing(store):
        yield store, run_id
        with store.write() as session:
            lifecycle.delete_run_rows(session, run_id)


@pytest.fixture
def learnt(played: tuple[Store, str]) -> Iterator[Learnt]:
    """A session on it whose changes are undone."""
    store, run_id = played
    with store.read() as session:
        yield session, run_id
        session.rollback()


@pytest.fixture
def fresh(learnt: Learnt) -> Learnt:
    """The same session and another run, that has just begun."""
    session, _ = learnt
    run = Run(
        run_id="new", name="new", config="{}", seed=0, state=RunState.RUNNING, created_at=now()
    )
    session.add(run)
    session.flush()
    return session, "new"


def change(session: Session, *statements: str) -> None:
    for statement in statements:
        session.connection().exec_driver_sql(statement)
    session.expire_all()


def test_each_version_has_the_success_of_the_last_groups_before_it(learnt: Learnt) -> None:
    points = [p for p in curves.success_by_version(*learnt, 24, 2) if p.task == TASKS[0]]
    assert [(p.span.version, p.solved, p.episodes) for p in points] == [
        (1, 1, 4),
        (2, 2, 4),
        (3, 3, 4),
        (4, 4, 4),
    ]
    assert [p.span.tokens for p in points] == [80, 160, 240, 320]
    assert points[1].reward == 0.5
    assert points[1].variance == pytest.approx(0.25)
    assert (points[0].turns, points[0].loss_tokens) == (2.0, 10.0)


def test_a_point_has_the_sums_over_items_that_its_interval_needs(learnt: Learnt) -> None:
    """Of the groups of versions 1, 2 and 3: 1, 2 and 3 of 4 solved; the first two of one item."""
    session, run_id = learnt
    change(session, "UPDATE episodes SET item_id = 'item-2' WHERE item_id = 'item-1'")
    (point,) = (
        p
        for p in curves.success_by_version(session, run_id, 24, 6)
        if (p.span.version, p.task) == (3, TASKS[0])
    )
    assert point.solves == ClusterSums(2, 12, 6.0, 3**2 + 3**2, 8 * 3 + 4 * 3, 8**2 + 4**2)
    assert point.rewards == point.solves  # of rewards 0 and 1


def test_a_point_reaches_back_beyond_the_point_before_it(learnt: Learnt) -> None:
    points = [p for p in curves.success_by_version(*learnt, 24, 6) if p.task == TASKS[0]]
    assert [(p.solved, p.episodes) for p in points] == [(1, 4), (3, 8), (6, 12), (9, 12)]
    closed = [
        each for each in curves.closed_groups_by_version(*learnt, 24, 6) if each[1] == TASKS[0]
    ]
    assert [sum(states.values()) for _, _, states in closed] == [1, 2, 3, 3]


def test_fewer_points_look_at_the_last_groups_before_some_versions(learnt: Learnt) -> None:
    points = curves.success_by_version(*learnt, 2, 2)  # two groups: one of each task
    assert [(p.span.version, p.task, p.solved) for p in points] == [
        (2, TASKS[0], 2),
        (2, TASKS[1], 2),
        (4, TASKS[0], 4),
        (4, TASKS[1], 4),
    ]


def test_groups_that_closed_after_the_newest_update_are_in_no_point(learnt: Learnt) -> None:
    session, run_id = learnt
    change(session, "UPDATE groups SET closed_at = closed_at + 1e6 WHERE position >= 3")
    found = curves.success_by_version(session, run_id, 24, 64)
    closed = curves.closed_groups_by_version(session, run_id, 24, 64)
    versions = {point.span.version for point in found}
    assert versions == {span.version for span, _, _ in closed} == {1, 2, 3, 4}
    assert sum(p.episodes for p in found if p.span.version == 4) == 4 * 4
    assert sum(p.episodes for p in curves.recent_points(session, run_id)) == 4 * 8


def test_a_run_without_updates_has_no_point(fresh: Learnt) -> None:
    assert curves.spans(*fresh, 24) == []
    assert curves.success_by_version(*fresh, 24, 64) == []
    assert curves.closed_groups_by_version(*fresh, 24, 64) == []
    assert curves.recent_points(*fresh) == []


def test_the_recent_points_are_of_the_episodes_of_recent_success(learnt: Learnt) -> None:
    session, run_id = learnt
    assert [p.solved for p in curves.recent_points(session, run_id)] == [10, 10]
    change(  # ten updates begin after the groups of versions 1 and 2 have closed
        session,
        "UPDATE updates SET version = version + 20, started_at = 1000.0",
        "UPDATE runs SET version = 24",
        "UPDATE groups SET closed_at = CASE WHEN position <= 2 THEN 900.0 ELSE 1100.0 END",
    )
    points = curves.recent_points(session, run_id)
    assert [(p.task, p.solved, p.episodes) for p in points] == [(task, 7, 8) for task in TASKS]
    success = progress.recent_success(session, run_id)
    assert success == {p.task: p.solved / p.episodes for p in points}
    assert progress.percent_by_task(success) == "alfworld 87.5% · dbbench 87.5%"


def test_groups_that_the_end_of_a_run_cancels_are_in_no_recent_success(learnt: Learnt) -> None:
    """Of their members only those that won, which are short, had finished."""
    session, run_id = learnt
    change(
        session,
        "UPDATE groups SET state = 'cancelled' WHERE position = 3",
        "UPDATE episodes SET state = 'cancelled' WHERE score < 1 AND item_id = 'item-3'",
    )
    points = curves.recent_points(session, run_id)
    assert [(p.task, p.solved, p.episodes) for p in points] == [(task, 7, 12) for task in TASKS]
    assert progress.recent_success(session, run_id) == dict.fromkeys(TASKS, 7 / 12)


def test_the_time_of_an_update_has_five_parts_none_below_zero(learnt: Learnt) -> None:
    session, run_id = learnt
    found = delays.delays(session, run_id, 3)
    assert [each.version for each in found] == [2, 3, 4]
    for each in found:
        assert 0 <= each.queued_s < 3600
        assert 0 <= each.playing_s < 3600
        assert 0 <= each.siblings_s < 3600
        assert each.ready_s == 0.0  # the history's updates claim to have begun long ago
        assert each.update_s > 1e9


def test_parts_of_the_time_are_means_of_members(learnt: Learnt) -> None:
    session, run_id = learnt
    change(
        session,
        "UPDATE episodes SET queued_at = 100, started_at = 103, ended_at = 110",
        "UPDATE episodes SET ended_at = 114 WHERE member < 2",  # of four
        "UPDATE groups SET ready_at = 114",
        "UPDATE updates SET started_at = 119, committed_at = 126",
    )
    found = delays.delays(session, run_id, 2)
    assert found == [delays.Delay(version, 3.0, 9.0, 2.0, 5.0, 7.0) for version in (3, 4)]
    change(session, "UPDATE groups SET origin_id = 'played'")
    assert delays.delays(session, run_id, 2) == []


def test_what_waits_is_counted_by_state(learnt: Learnt) -> None:
    session, run_id = learnt
    assert delays.waiting_counts(session, run_id) == delays.Waiting({}, {})
    admit_groups(
        session, session.get_one(Run, run_id), [NewGroup("g", TASKS[0], 9, 0, "item-9", 4)]
    )
    session.flush()
    found = delays.waiting_counts(session, run_id)
    assert found.groups == {GroupState.OPEN: 1}
    assert found.episodes == {EpisodeState.QUEUED: 4}


def test_the_pace_is_of_the_window_and_no_longer_than_the_run(learnt: Learnt) -> None:
    found = delays.recent_pace(*learnt, 3600.0)
    assert (found.episodes, found.loss_tokens, found.updates) == (32, 320, 4)
    assert 0 < found.seconds < 3600
    assert delays.recent_pace(*learnt, 0.0).episodes == 0


def test_the_pace_of_updates_needs_two(learnt: Learnt) -> None:
    step = delays.update_s(*learnt, 9)
    assert step is not None
    assert step > 0
    assert delays.update_s(learnt[0], "another", 9) is None


def test_a_break_of_the_run_is_not_the_pace_of_updates(learnt: Learnt) -> None:
    change(learnt[0], "UPDATE updates SET committed_at = committed_at - 3600 WHERE version <= 2")
    step = delays.update_s(*learnt, 9)
    assert step is not None
    assert 0 < step < 600


def test_all_that_updates_learned_from_is_counted_from_them(learnt: Learnt) -> None:
    assert progress.learned_totals(*learnt) == progress.LearnedTotals(4, 32, 320)
    assert progress.learned_totals(learnt[0], "another") == progress.LearnedTotals(0, 0, 0)
    change(learnt[0], "UPDATE updates SET state = 'skipped' WHERE version = 2")
    assert progress.learned_totals(*learnt) == progress.LearnedTotals(4, 24, 240)
    assert [span.tokens for span in curves.spans(*learnt, 24)] == [80, 80, 160, 240]
    totals = progress.totals(*learnt)
    assert (totals.sampled_tokens, totals.trained_tokens) == (320, 240)


def test_leases_live_are_lost_or_ended(learnt: Learnt) -> None:
    session, run_id = learnt
    assert [(each.role, each.state) for each in leases.leases(session, run_id, 9)] == [
        ("worker", "ended"),
        ("policy server", "live"),
    ]
    dispatcher_lease.acquire(session, run_id, "here", lease_s=60.0)
    assert runs.acquire_recorder_lease(session, run_id, "there", lease_s=60.0, recorded_until=None)
    epoch = session.get_one(Run, run_id).trainer_epoch
    assert not runs.extend_trainer_lease(session, run_id, epoch - 1, lease_s=60.0)
    assert runs.extend_trainer_lease(session, run_id, epoch, lease_s=60.0)
    change(
        session,
        "UPDATE policy_servers SET lease_until = 1",
        "UPDATE workers SET ended_at = NULL, lease_until = lease_until + 99",
    )
    assert [(each.role, each.state) for each in leases.leases(session, run_id, 9)] == [
        ("dispatcher", "live"),
        ("trainer", "live"),
        ("recorder", "live"),
        ("worker", "live"),
        ("policy server", "lost"),
    ]
    alive = lifecycle.live_processes(session, run_id)
    assert alive[:3] == ["dispatcher here", f"trainer of epoch {epoch}", "recorder there"]
    runs.release_trainer_lease(session, run_id, epoch)
    runs.release_recorder_lease(session, run_id, "there")
    assert len(lifecycle.live_processes(session, run_id)) == len(alive) - 2
    dispatcher_lease.release(session, run_id, "here")
    assert len(lifecycle.live_processes(session, run_id)) == len(alive) - 3
    assert [each.state for each in leases.leases(session, run_id, 9)][:3] == ["ended"] * 3


def test_who_has_no_lease_is_known_by_his_last_work(learnt: Learnt, fresh: Learnt) -> None:
    assert leases.idle_s(*fresh) == {}
    change(learnt[0], "UPDATE trajectories SET received_at = 1e9")
    found = leases.idle_s(*learnt)
    assert 0 <= found["trainer"] < 300
    assert found["recorder"] > 1e6
    gone = "UPDATE updates SET state = 'rolled_back', committed_at = 1 WHERE version = 4"
    change(learnt[0], gone)
    assert 0 <= leases.idle_s(*learnt)["trainer"] < 300


def test_updates_of_the_surviving_lineage_are_listed_alone(learnt: Learnt) -> None:
    def versions(*, only_live: bool) -> list[int]:
        found = lifecycle.latest_updates(*learnt, 2, only_live=only_live)
        return [each.version for each in found]

    change(learnt[0], "UPDATE updates SET state = 'rolled_back' WHERE version = 3")
    assert versions(only_live=False) == [4, 3]
    assert versions(only_live=True) == [4, 2]


def test_groups_are_counted_by_how_they_ended(learnt: Learnt) -> None:
    assert task_outcomes.group_ends(*learnt) == [(task, "trained", "", 4) for task in TASKS]


def test_episodes_of_the_last_groups_are_counted_by_how_they_ended(learnt: Learnt) -> None:
    (row,) = task_outcomes.end_counts(*learnt, TASKS[0], 3)
    assert row == task_outcomes.EndCount("finished", "completed", "", 2, 12)


def test_groups_are_counted_by_how_many_members_solved_their_item(learnt: Learnt) -> None:
    assert task_outcomes.solved_among(*learnt, TASKS[0], 9) == {(4, n): 1 for n in (1, 2, 3, 4)}
    assert task_outcomes.solved_among(*learnt, TASKS[0], 1) == {(4, 4): 1}


@pytest.mark.parametrize("groups", [2, 9, None])
def test_items_that_nobody_solved_are_listed(learnt: Learnt, groups: int | None) -> None:
    session, run_id = learnt
    assert task_outcomes.unsolved_items(session, run_id, TASKS[0], groups, 9).unsolved == 0
    change(session, "UPDATE episodes SET score = 0.5 WHERE item_id IN ('item-1', 'item-4')")
    found = task_outcomes.unsolved_items(session, run_id, TASKS[0], groups, 9)
    late = groups == 2
    assert (found.played, found.unsolved) == ((2, 1) if late else (4, 2))
    assert found.listed[-1] == task_outcomes.UnsolvedItem("item-4", 1, 4, 0.5)
    assert len(task_outcomes.unsolved_items(session, run_id, TASKS[0], groups, 1).listed) == 1
    assert task_outcomes.unsolved_items(
        session, run_id, "none", groups, 9
    ) == task_outcomes.ItemSummary(0, 0, [])


def test_the_balance_has_an_episode_for_each_member(learnt: Learnt) -> None:
    session, run_id = learnt
    assert balance.balance(*learnt) == balance.Balance(8, 32, {"finished": 32})
    admit_groups(
        session, session.get_one(Run, run_id), [NewGroup("g", TASKS[0], 9, 0, "item-9", 4)]
    )
    session.flush()
    change(session, "DELETE FROM episodes WHERE item_id = 'item-9' AND member = 3")
    assert balance.balance(*learnt) == balance.Balance(9, 36, {"finished": 32, "queued": 3})
    assert balance.balance(learnt[0], "another") == balance.Balance(0, 0, {})


def test_what_was_given_up_is_counted_by_reason(learnt: Learnt) -> None:
    session, run_id = learnt
    assert balance.failed_counts(session, run_id) == []
    admit_groups(
        session, session.get_one(Run, run_id), [NewGroup("g", TASKS[0], 9, 0, "item-9", 4)]
    )
    session.flush()
    runs.move_run(session, run_id, RunState.STOPPED)
    session.flush()
    assert balance.failed_counts(session, run_id) == [("cancelled", "run_ended", 4, 0)]


def test_attempts_that_are_repeated_are_counted_by_reason(learnt: Learnt) -> None:
    session, run_id = learnt
    admit_groups(
        session, session.get_one(Run, run_id), [NewGroup("g", TASKS[0], 9, 0, "item-9", 4)]
    )
    session.flush()
    assert balance.retry_counts(session, run_id) == {}
    change(session, "UPDATE episodes SET reason = 'lost' WHERE item_id = 'item-9' AND member = 1")
    assert balance.retry_counts(session, run_id) == {"lost": 1}


def test_refusals_are_counted_with_the_age_of_the_latest(learnt: Learnt) -> None:
    session, run_id = learnt
    assert balance.refused_counts(session, run_id) == []
    for _ in range(2):
        refusals.of_run(session, Transition.COMMIT, run_id, "epoch", 1)
    session.flush()
    (row,) = balance.refused_counts(session, run_id)
    assert (row.transition, row.found, row.number) == ("commit", "epoch", 2)
    assert 0 <= row.age_s < 3600


def test_tasks_are_those_that_configurations_name(learnt: Learnt) -> None:
    session, _ = learnt
    assert runs.configured_tasks(session) == []
    change(session, """UPDATE runs SET config = '{"tasks": {"os": {}, "kg": {}}}'""")
    assert runs.configured_tasks(session) == ["kg", "os"]
    for odd in ("", "[1]", "no JSON"):
        session.execute(update(Run).values(config=odd))
        assert runs.configured_tasks(session) == []


def test_runs_are_named_the_newest_first(fresh: Learnt) -> None:
    assert list(runs.run_names(fresh[0])) == ["new", "run"]


def test_a_run_that_ended_ran_until_then(learnt: Learnt) -> None:
    session, run_id = learnt
    run = session.get_one(Run, run_id)
    change(session, "UPDATE runs SET created_at = 100, ended_at = 160")
    assert progress.ran_s(session, run) == 60.0


def test_the_newest_evaluation_of_each_kind_is_told_by_item(learnt: Learnt) -> None:
    session, run_id = learnt
    assert comparison.latest_item_scores(session, run_id) == {}
    for version, split, scores in (
        (1, "test", (1.0, 1.0)),
        (3, "test", (0.5, 1.0)),
        (2, "dev", (1.0,)),
    ):
        session.add(evaluation(run_id, version, split=split, settings="{}"))
        session.flush()
        session.add_all(
            measured(f"e{version}", repeat, score) for repeat, score in enumerate(scores)
        )
    unmeasured = {"split": "test", "settings": "{}", "episodes": 0}
    session.add(evaluation(run_id, 4, **unmeasured))  # nothing of it is measured yet
    session.add(evaluation(run_id, 5, split="test", settings="{}", planned=11))  # of 10 so far
    session.flush()
    session.add(measured("e5", 0, 1.0))
    session.flush()
    assert comparison.latest_item_scores(session, run_id) == {
        ("kg", "dev", 0.0, "{}"): comparison.ItemScores(2, {"item": 1.0}),
        ("kg", "test", 0.0, "{}"): comparison.ItemScores(3, {"item": 0.5}),
    }


@pytest.mark.parametrize("state", [CheckpointState.ROLLED_BACK, CheckpointState.DELETED])
def test_an_evaluation_of_weights_that_were_rolled_back_is_not_the_runs(
    learnt: Learnt, state: CheckpointState
) -> None:
    session, run_id = learnt
    kept, gone = f"{run_id}-v000001", f"{run_id}-v000002"
    session.get_one(Checkpoint, kept).state = CheckpointState.DELETED
    session.get_one(Checkpoint, gone).state = state
    rolled_back = {"state": UpdateState.ROLLED_BACK}
    session.execute(update(Update).where(Update.checkpoint_id == gone).values(rolled_back))
    for version in (1, 2):
        session.add(evaluation(run_id, version, policy=f"run@{version}"))
        session.flush()
        session.add(measured(f"e{version}", 0, 1.0))
    exported = evaluation(run_id, 3, checkpoint_id=gone, policy="./exported")
    exported.run_id = None
    session.add(exported)
    session.flush()
    (scores,) = comparison.latest_item_scores(session, run_id).values()
    assert scores.version == 1
    assert [row.version for row in lineage.measurements(session, run_id, 9)] == [1]
    rows = tracker_cursor.tracker_rows(session, run_id, TrackerCursor())
    assert [(row.version, "loss" in row.metrics) for row in rows] == [
        (1, True),
        (3, True),
        (4, True),
        (1, False),
    ]
    found = {
        name: [row.evaluation_id for row in evaluations.evaluations_of_policy(session, name)]
        for name in ("run@1", "run@2", "./exported", gone)
    }
    assert found == {"run@1": ["e1"], "run@2": [], "./exported": ["e3"], gone: ["e2", "e3"]}


def measured(evaluation_id: str, repeat: int, score: float) -> EvaluationEpisode:
    return EvaluationEpisode(
        evaluation_id=evaluation_id, item_id="item", repeat=repeat, status=Status.COMPLETED,
        reward=score, score=score, turns=1, tokens=9, prompt_tokens=5, sampled_tokens=4,
        seconds=1.0, machine_s=1.0, ended_at=now(),
    )  # fmt: skip
