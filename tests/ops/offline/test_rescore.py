"""New rewards for recorded episodes, as a run of copies."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backends import DATABASES
from msgspec.structs import replace
from planted_run import SPREAD, PlantedRun
from running import agentrl
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.core.errors import ConfigError, ItemError, StoreError
from agentrl.core.trajectory import Judgement, Trajectory
from agentrl.core.trajectory_body import body_of
from agentrl.core.types import GroupState, Reason, RunState
from agentrl.db.models.episodes import Group, StoredTrajectory
from agentrl.db.models.runs import Run
from agentrl.db.queries import history_batches
from agentrl.db.transitions import groups, runs
from agentrl.ops.offline.rescore import rescore
from agentrl.ops.offline.train_from import OfflineRequest, train_from
from agentrl.ops.runs.lifecycle import control, delete, find_run_place

REWARDS = """
import os
import signal

import numpy as np

def flipped(episode):
    return 1.0 - episode.reward

def by_step(episode):
    return [0.25 * (number + 1) for number in range(len(episode.steps))]

def recorded(episode):
    return None

def breaks(episode):
    if episode.task == "alfworld":
        raise KeyError("no such thing")
    return 0.0

def wrong(episode):
    return [1.0]

def too_large(episode):
    return 10**400

def too_large_a_sum(episode):
    return [3e38] * len(episode.steps)

def too_large_for_training(episode):
    return 1e300

def of_numpy(episode):
    return np.float32(0.5)

def judged_only(episode):
    return [3.0 * (score or 0.0) for score in episode.judge_scores()]

def kill_itself(episode):
    if episode.task == "alfworld":
        os.kill(os.getpid(), signal.SIGKILL)

def terminate_itself(episode):
    if episode.task == "alfworld":
        os.kill(os.getpid(), signal.SIGTERM)
"""


ON_BOTH = pytest.mark.parametrize("history", DATABASES, indirect=True)


@pytest.fixture
def history(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlantedRun]:
    """Update 1 looked at A and, without spread, B; update 2 at C; nobody looked at D yet."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    on_postgres = getattr(request, "param", "sqlite") == "postgres"
    store = request.getfixturevalue("postgres_url") if on_postgres else "embedded"
    with PlantedRun.begun(tmp_path, store) as world:
        a = world.plant(0, "dbbench", SPREAD)
        b = world.plant(1, "dbbench", (0.0,) * 4)
        c = world.plant(2, "alfworld", SPREAD, version=1)
        world.plant(3, "dbbench", SPREAD, version=1)
        with world.store.write() as session:
            groups.close_groups(session, [b], GroupState.FILTERED, Reason.ZERO_SPREAD)
        world.commit(1, a)
        world.commit(2, c)
        yield world


def score(history: PlantedRun, function: str, name: str = "scored") -> str:
    place = find_run_place(str(history.path))
    return rescore(place, f"{history.path.parent / 'rewards.py'}:{function}", name)


def rows(history: PlantedRun) -> dict[str, list[Any]]:
    """All rows of the run, by table."""
    tables = ("groups", "episodes", "steps", "trajectories", "updates", "checkpoints", "runs")
    return {
        name: sorted(
            history.ask(f"SELECT * FROM {name} WHERE run_id = :r", r=history.run_id),  # noqa: S608
            key=repr,
        )
        for name in tables
    }


def bodies(history: PlantedRun, run_id: str) -> dict[str, Any]:
    with history.store.read() as session:
        found = session.query(StoredTrajectory).filter_by(run_id=run_id).all()
        return {row.episode_id: body_of(row.body, row.sha256) for row in found}


@ON_BOTH
def test_new_rewards_are_a_run_of_its_own_and_the_old_one_stays(
    history: PlantedRun, tmp_path: Path
) -> None:
    before = rows(history)
    argv = ["rescore", str(history.path), "--reward", f"{tmp_path / 'rewards.py'}:flipped"]
    ended = CliRunner().invoke(app, argv, catch_exceptions=False)
    assert rows(history) == before
    head, alfworld, dbbench, *_, last = ended.output.splitlines()
    assert head.split() == [
        "task",
        "groups",
        "episodes",
        "mean",
        "reward",
        "groups",
        "with",
        "spread",
    ]
    assert alfworld.split() == ["alfworld", "1", "4", "0.500", "→", "0.500", "1", "→", "1"]
    assert dbbench.split() == ["dbbench", "2", "8", "0.250", "→", "0.750", "1", "→", "1"]
    assert last == (
        f"train on it with: AGENTRL__RUN__NAME=learned-rescored agentrl train --from {history.path}"
    )
    with history.store.read() as session:
        run = runs.require_run(session, "learned-rescored")
        first = history_batches.starting_checkpoint(session, run)
        assert first is not None
        assert first.run_id == history.run_id
        batches = history_batches.read_batches(session, run.run_id)
        copies = {row.group_id: row for row in session.query(Group).filter_by(run_id=run.run_id)}
    assert run.state == RunState.COMPLETED
    looked_at = [[origin for _, origin in batch.group_ids] for batch in batches]
    named = [f"{history.run_id}-{place}" for place in ("dbbench-0", "dbbench-1", "alfworld-2")]
    assert looked_at == [named[:2], named[2:]]
    assert {row.origin_id for row in copies.values()} == set(named)
    assert {row.state for row in copies.values()} == {GroupState.READY}
    stored, copied = bodies(history, history.run_id), bodies(history, run.run_id)
    assert len(copied) == 12
    for name, body in copied.items():
        original = stored[name.replace(run.run_id, history.run_id)]
        assert body.reward == 1.0 - original.reward
        assert (body.score, body.token_ids, body.policies) == (
            original.score,
            original.token_ids,
            original.policies,
        )
    assert history.accounting() == []


def test_a_reward_for_each_step_sums_up_to_the_episodes(history: PlantedRun) -> None:
    score(history, "by_step")
    found = history.ask(
        "SELECT DISTINCT e.reward, s.number, s.reward FROM episodes e JOIN runs r USING (run_id)"
        " JOIN steps s ON s.episode_id = e.episode_id WHERE r.name = 'scored' ORDER BY s.number"
    )
    assert found == [(0.75, 0, 0.25), (0.75, 1, 0.5)]


def test_scores_that_a_judge_gave_the_turns_are_weighed_anew_without_asking_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS)
    with PlantedRun.begun(tmp_path) as world:
        (group_id,) = world.admit(0, task="dbbench")
        claims = world.claimed(group_id)
        bodies = [
            _judged(world.body(claimed, reward))
            for claimed, reward in zip(claims, SPREAD, strict=True)
        ]
        for claimed, body in zip(claims, bodies, strict=True):
            assert world.finish(claimed, body)
        world.keep(bodies)
        world.commit(1, group_id)
        score(world, "judged_only")
        found = world.ask(
            "SELECT e.member, e.reward, s.number, s.reward, s.judge_score FROM runs r"
            " JOIN episodes e USING (run_id) JOIN steps s ON s.episode_id = e.episode_id"
            " WHERE r.name = 'scored' AND e.member < 2 ORDER BY e.member, s.number"
        )
        assert found == [
            (0, 1.5, 0, 1.5, 0.5),
            (0, 1.5, 1, 0.0, 0.0),
            (1, 4.5, 0, 1.5, 0.5),
            (1, 4.5, 1, 3.0, 1.0),
        ]
        assert world.accounting() == []


def _judged(body: Trajectory) -> Trajectory:
    """The body with scores 0.5 and its reward of its two turns."""
    scores = (0.5, body.reward)
    judgement = Judgement(
        judge="big", score=sum(scores) / 2, reply="", environment_reward=0.0, turn_scores=scores
    )
    return replace(body, judgement=judgement)


@ON_BOTH
def test_the_first_batch_with_another_reward_is_known(history: PlantedRun) -> None:
    changed = {}
    for name in ("recorded", "by_step", "flipped"):
        score(history, name, name)
        with history.store.read() as session:
            run_id = runs.require_run(session, name).run_id
            changed[name] = history_batches.first_changed_batch(session, run_id)
    assert changed == {"recorded": None, "by_step": 1, "flipped": 1}
    history.sql(
        "UPDATE steps SET reward = 0.5 WHERE number = 0 AND episode_id LIKE 'recorded-%alfworld%'"
    )
    with history.store.read() as session:
        run_id = runs.require_run(session, "recorded").run_id
        assert history_batches.first_changed_batch(session, run_id) == 2
    history.sql(
        "UPDATE steps SET branch_reward = 0.5 WHERE number = 1 AND episode_id LIKE 'recorded-%dbb%'"
    )
    with history.store.read() as session:
        assert history_batches.first_changed_batch(session, run_id) == 1


@pytest.mark.parametrize(
    ("function", "kind", "reason"),
    [
        ("breaks", ConfigError, "episode .*-alfworld-2-0: KeyError: 'no such thing'"),
        ("wrong", ConfigError, r"episode .*-dbbench-0-0: it returned \[1.0\]"),
        ("too_large", ConfigError, "it returned 10000"),
        ("too_large_a_sum", ConfigError, r"it returned \[3e\+38, "),
        ("too_large_for_training", ConfigError, r"it returned 1e\+300"),
        ("absent", ItemError, "rescore: option --reward: .*absent"),
    ],
)
def test_what_cannot_be_scored_leaves_nothing(
    history: PlantedRun, function: str, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        score(history, function)
    with history.store.read() as session:
        assert session.query(Run).count() == 1


def interrupt(history: PlantedRun, function: str) -> None:
    """Rescore in a process that the function ends after some groups were copied."""
    reward = f"{history.path.parent / 'rewards.py'}:{function}"
    argv = ("rescore", str(history.path), "--reward", reward, "--name", "scored")
    with agentrl(*argv, environment={}, output=history.path.with_name("log")) as process:
        assert process.wait(60) != 0


def test_what_a_killed_command_leaves_is_not_complete_and_can_be_deleted(
    history: PlantedRun,
) -> None:
    interrupt(history, "kill_itself")
    found = "SELECT state, reason, ended_at IS NULL FROM runs WHERE name = 'scored'"
    assert history.ask(found) == [(RunState.PAUSED, "being rescored", 1)]
    reason = "run scored has only some of its groups"
    place = find_run_place("scored", history.config.store_url())
    with pytest.raises(StoreError, match=reason):
        train_from(OfflineRequest(place, "trained"), threading.Event())
    with pytest.raises(StoreError, match=reason):
        rescore(place, f"{history.path.parent / 'rewards.py'}:flipped", "again")
    with pytest.raises(StoreError, match=reason):
        control(place, "resume")
    with pytest.raises(StoreError, match=reason):
        score(history, "flipped")
    begun = OfflineRequest(find_run_place(str(history.path)), "scored")
    with pytest.raises(StoreError, match="a run named scored exists already"):
        train_from(begun, threading.Event())
    delete(place)
    assert " has 3 groups of learned " in score(history, "flipped")
    origin = f"rescored from learned with {history.path.parent / 'rewards.py'}:flipped"
    assert history.ask(found) == [(RunState.COMPLETED, origin, 0)]
    assert history.accounting() == []


def test_a_terminated_command_leaves_nothing(history: PlantedRun) -> None:
    interrupt(history, "terminate_itself")
    with history.store.read() as session:
        assert session.query(Run).count() == 1


def test_a_run_that_another_command_moves_gets_no_more_copies(history: PlantedRun) -> None:
    history.path.with_name("rewards.py").write_text(
        "from agentrl.db.store import open_store\n"
        "from agentrl.db.transitions import runs\n"
        "def moved(episode):\n"
        f"    with open_store({history.config.store_url()!r}).write() as session:\n"
        "        runs.find_run(session, 'scored').state = 'running'\n"
    )
    with pytest.raises(StoreError, match=r"run scored-.* was changed by another command"):
        score(history, "moved")


@ON_BOTH
def test_a_group_whose_body_was_pruned_is_left_out_aloud(history: PlantedRun) -> None:
    history.sql("UPDATE trajectories SET body = '' WHERE episode_id LIKE '%-alfworld-2-2'")
    told = score(history, "flipped")
    assert told.endswith("1 groups left out: their bodies are not stored")
    assert " has 2 groups of learned " in told
    with history.store.read() as session:
        copy_id = runs.require_run(session, "scored").run_id
        for run_id in (history.run_id, copy_id):
            found = history_batches.first_incomplete_batch(session, run_id, history.run_id)
            assert found == 2


def test_a_number_of_numpy_is_a_reward(history: PlantedRun) -> None:
    score(history, "of_numpy")
    found = history.ask("SELECT DISTINCT reward FROM episodes WHERE episode_id LIKE 'scored-%'")
    assert found == [(0.5,)]


def test_a_run_at_whose_groups_nobody_looked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS)
    with PlantedRun.begun(tmp_path) as world:
        world.plant(0, "dbbench", SPREAD)
        with pytest.raises(StoreError, match="run learned has no trained or closed group yet"):
            score(world, "flipped")


def test_a_name_that_is_taken_is_refused(history: PlantedRun) -> None:
    with pytest.raises(StoreError, match="a run named learned exists already"):
        score(history, "flipped", "learned")
