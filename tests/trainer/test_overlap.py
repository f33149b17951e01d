"""An update is published while the next one is computed: order, failures, ends."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import faulty_filesystem
import killed_trainer
import msgspec
import pytest
from faulty_filesystem import FaultyFileSystem
from inline import HeldExecutor, InlineExecutor
from run_transitions import World
from running import eventually
from sqlalchemy import event
from torch_device import DEVICE
from training_loops import SETTINGS, TRAINER, HookedLearner, run_loop

from agentrl.checkpoints import manifest
from agentrl.checkpoints.checkpoint_store import CheckpointStore, fetch
from agentrl.core.config.sections.training import Lora
from agentrl.core.errors import CheckpointError, StoreUnavailable
from agentrl.core.types import RunState
from agentrl.db.store import Store
from agentrl.db.transitions import runs
from agentrl.db.transitions.updates import TrainerReplaced, UpdateRefused
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.group_selection import InboxBounds

FAR = "faulty://far"
WAIT_S = 120.0


class SlowUpload:
    """The first upload begins, and ends when the test says so."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        faulty_filesystem.register()
        FaultyFileSystem.faults[:] = [self._wait]

    def _wait(self, _path: str) -> None:
        self.began.set()
        assert self.may_end.wait(WAIT_S), "nothing went on while the upload was under way"

    def end(self) -> None:
        assert self.began.wait(WAIT_S)
        self.may_end.set()


@pytest.fixture
def world(store: Store) -> World:
    """With three ready groups, one for each update."""
    return _begin(store)


def _begin(store: Store, groups: int = 3) -> World:
    world = World.begin(store)
    world.sql("UPDATE runs SET name = run_id")  # there may be another one
    for position in range(groups):
        world.ready(position)
    return world


@pytest.fixture
def upload() -> Iterator[SlowUpload]:
    slow = SlowUpload()
    yield slow
    slow.may_end.set()


def _weights(world: World, home: Path) -> dict[int, str]:
    """The digest of the weights of each live version."""
    rows = world.ask(
        "SELECT version, path FROM checkpoints WHERE state = 'live' AND version > 0"
        " AND run_id = :r",
        r=world.run_id,
    )
    found = {}
    for version, path in rows:
        directory = fetch(path, home / "fetched")
        files = manifest.verify(directory).files
        (found[version],) = (each for name, each in files.items() if name.endswith("safetensors"))
    return found


def _stored(home: Path) -> list[str]:
    return CheckpointStore(home / "checkpoints", home / "cache", FAR).names()


def _states(world: World) -> list[str]:
    rows = "SELECT state FROM groups WHERE run_id = :r ORDER BY position"
    return [state for (state,) in world.ask(rows, r=world.run_id)]


def _assert_undisturbed_weights(world: World, tiny: Path, tmp_path: Path) -> None:
    """All three updates led to the weights that a run without failures has."""
    undisturbed, home = _begin(world.store), tmp_path / "undisturbed"
    home.mkdir()
    run_loop(undisturbed, HookedLearner(tiny), home, stop_updates=3)
    assert _weights(undisturbed, home) == _weights(world, tmp_path)
    assert world.accounting() == []


def test_the_next_gradient_is_computed_during_an_upload_and_steps_after_its_commit(
    world: World, tiny: Path, tmp_path: Path, upload: SlowUpload
) -> None:
    seen: list[int] = []

    def during() -> None:
        assert upload.began.wait(WAIT_S)
        seen.append(world.run().version)
        upload.end()

    learner = HookedLearner(tiny, {2: during})
    learner.stepping[2] = lambda: seen.append(world.run().version)
    run_loop(world, learner, tmp_path, url=FAR, stop_updates=2)
    assert seen == [0, 1]
    assert (world.run().state, world.run().version) == (RunState.COMPLETED, 2)
    rows = world.ask("SELECT version, metrics FROM updates ORDER BY committed_at")
    assert [version for version, _ in rows] == [1, 2]
    assert "commit_wait_s" in rows[1][1]
    assert world.accounting() == []


def test_the_next_step_waits_for_the_commit_and_not_for_what_is_deleted_after_it(
    store: Store, tiny: Path, tmp_path: Path
) -> None:
    """After update 6 nothing needs version 1: a track lags by 4, the newest snapshot is of 6."""
    world = _begin(store, groups=7)
    faulty_filesystem.register()
    stepped, found = threading.Event(), []
    FaultyFileSystem.removing[:] = [lambda: found.append(stepped.wait(WAIT_S))]
    learner = HookedLearner(tiny)
    learner.stepping[7] = stepped.set
    trainer = msgspec.structs.replace(TRAINER, keep_checkpoints=1, snapshot_every=1)
    run_loop(
        world,
        learner,
        tmp_path,
        url=FAR,
        trainer=trainer,
        background=InlineExecutor(),
        stop_updates=7,
    )
    assert found == [True]
    assert len(_stored(tmp_path)) < 7
    assert world.accounting() == []


def test_a_snapshot_that_ends_during_a_gradient_makes_room_for_the_next(
    world: World, tiny: Path, tmp_path: Path
) -> None:
    writing = HeldExecutor()
    learner = HookedLearner(tiny, {3: writing.release})
    learner.stepping[3] = writing.open
    trainer = msgspec.structs.replace(TRAINER, snapshot_every=1)
    run_loop(world, learner, tmp_path, background=writing, trainer=trainer, stop_updates=3)
    rows = "SELECT version FROM checkpoints WHERE snapshot_path IS NOT NULL ORDER BY version"
    assert world.ask(rows) == [(2,), (3,)]  # the two newest are kept


@pytest.mark.parametrize("rank", [0, 4], ids=["whole", "adapter"])
def test_the_same_groups_give_the_same_weights_with_and_without_overlap(
    store: Store, tiny: Path, tmp_path: Path, rank: int
) -> None:
    found = []
    for name, publishing in (("overlap", None), ("apart", InlineExecutor())):
        world, home = _begin(store), tmp_path / name
        home.mkdir()
        learner = TorchLearner(tiny, replace(SETTINGS, lora=Lora(rank=rank)), Hardware(DEVICE))
        run_loop(world, learner, home, publishing=publishing, stop_updates=3)
        found.append(_weights(world, home))
    assert sorted(found[0]) == [1, 2, 3]
    assert len(set(found[0].values())) == 3
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("moment", killed_trainer.MOMENTS)
def test_a_process_killed_at_any_moment_of_a_publication_loses_and_repeats_nothing(
    world: World, tiny: Path, tmp_path: Path, moment: str
) -> None:
    url = world.store.engine.url.render_as_string(hide_password=False)
    command = [sys.executable, killed_trainer.__file__, url, world.run_id, tiny, tmp_path, moment]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    is_committed = moment == "committed"
    first = "trained" if is_committed else "ready"
    assert (world.run().version, _states(world)) == (is_committed, [first, "ready", "ready"])
    left = 3 - is_committed
    run_loop(world, HookedLearner(tiny), tmp_path, stop_updates=left)
    # A committed update without a snapshot is rolled back; its items are played again.
    first = "rolled_back" if is_committed else "trained"
    assert _states(world) == [first, "trained", "trained"]
    assert len(_weights(world, tmp_path)) == left
    rows = world.ask("SELECT path FROM checkpoints WHERE version > 0 AND state <> 'deleted'")
    present = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert {Path(path).name for (path,) in rows} == {
        name for name in present if not name.endswith(".snapshot")
    }
    assert world.accounting() == []


def _kill() -> None:
    raise KeyboardInterrupt


def test_a_trainer_killed_between_a_gradient_and_the_former_commit_loses_and_repeats_nothing(
    world: World, tiny: Path, tmp_path: Path, upload: SlowUpload
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_loop(world, HookedLearner(tiny, {2: _kill}), tmp_path, url=FAR)
    assert upload.began.wait(WAIT_S)
    assert (world.run().version, set(_states(world))) == (0, {"ready"})
    run_loop(world, HookedLearner(tiny), tmp_path, url=FAR, stop_updates=3)
    assert _states(world) == ["trained"] * 3
    before = _weights(world, tmp_path)
    upload.end()  # of the one that was killed
    refused = "SELECT found FROM refusals WHERE transition = 'commit'"
    eventually(
        lambda: world.ask(refused) == [("TrainerReplaced",)],
        within_s=60,
        text=lambda: str(world.ask(refused)),
    )
    assert _weights(world, tmp_path) == before
    assert world.ask("SELECT COUNT(*) FROM updates") == [(3,)]
    assert world.accounting() == []


@pytest.mark.parametrize("version", [1, 2])
def test_a_trainer_told_to_stop_commits_every_update_that_has_stepped_and_a_snapshot(
    world: World, tiny: Path, tmp_path: Path, upload: SlowUpload, version: int
) -> None:
    """It is told when the second update's gradient is computed, or when that update may step."""
    stop = threading.Event()

    def end() -> None:
        upload.end()
        stop.set()

    learner = HookedLearner(tiny, {2: end if version == 1 else upload.end})
    learner.stepping = {2: end}
    run_loop(world, learner, tmp_path, url=FAR, stop=stop)
    assert (world.run().state, world.run().version) == (RunState.RUNNING, version)
    rows = world.ask("SELECT version FROM checkpoints WHERE snapshot_path IS NOT NULL")
    assert rows == [(version,)]
    assert _states(world) == ["trained"] * version + ["ready"] * (3 - version)
    assert world.accounting() == []


def test_an_update_whose_commit_failed_while_the_next_was_computed_is_committed_by_the_next_trainer(
    world: World, tiny: Path, tmp_path: Path, upload: SlowUpload
) -> None:
    stop = threading.Event()

    @event.listens_for(world.store.engine, "before_cursor_execute")
    def away(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if statement.startswith("INSERT INTO update_groups"):
            raise StoreUnavailable("the database is away")

    def during() -> None:
        stop.set()
        upload.end()

    stepped: list[int] = []
    learner = HookedLearner(tiny, {2: during})
    learner.stepping[2] = lambda: stepped.append(2)
    run_loop(world, learner, tmp_path, url=FAR, stop=stop)
    event.remove(world.store.engine, "before_cursor_execute", away)
    assert (world.run().version, set(_states(world)), stepped) == (0, {"ready"}, [])
    run_loop(world, HookedLearner(tiny), tmp_path, url=FAR, stop_updates=3)
    assert _states(world) == ["trained"] * 3
    epochs = "SELECT trainer_epoch FROM updates ORDER BY version"
    assert world.ask(epochs) == [(2,)] * 3
    _assert_undisturbed_weights(world, tiny, tmp_path)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("error", "meanwhile"),
    [
        (UpdateRefused, "UPDATE episodes SET fence = 2"),
        (TrainerReplaced, "UPDATE runs SET trainer_epoch = trainer_epoch + 1"),
    ],
)
def test_a_refused_publication_ends_the_loop_while_it_waits_or_computes(  # noqa: PLR0917
    store: Store,
    tiny: Path,
    tmp_path: Path,
    error: type[UpdateRefused],
    meanwhile: str,
    groups: int,
) -> None:
    world = _begin(store, groups)
    faulty_filesystem.register()
    FaultyFileSystem.faults[:] = [lambda _path: world.sql(meanwhile)]
    learner, stepped = HookedLearner(tiny), []
    learner.stepping[2] = lambda: stepped.append(2)
    with pytest.raises(UpdateRefused) as raised:
        run_loop(world, learner, tmp_path, url=FAR)
    assert (type(raised.value), stepped) == (error, [])
    eventually(lambda: _stored(tmp_path) == [], within_s=60, text=lambda: str(_stored(tmp_path)))
    assert (world.run().version, set(_states(world))) == (0, {"ready"})
    assert world.ask("SELECT COUNT(*) FROM updates") == [(0,)]


def test_an_update_whose_upload_was_given_up_at_the_stop_is_committed_by_the_next_trainer(
    world: World, tiny: Path, tmp_path: Path
) -> None:
    """The next update is being computed meanwhile; it is given up, and its group trained later."""
    faulty_filesystem.register()
    stop, stepped = threading.Event(), []

    def give_up() -> None:
        FaultyFileSystem.faults[:] = [OSError("the object store is away")] * 1000
        stop.set()

    learner = HookedLearner(tiny, {2: give_up})
    learner.stepping[2] = lambda: stepped.append(2)
    FaultyFileSystem.faults[:] = [lambda _path: stop.wait(WAIT_S), OSError("away")]
    run_loop(world, learner, tmp_path, url=FAR, stop=stop)
    FaultyFileSystem.faults.clear()
    assert (world.run().version, set(_states(world)), stepped) == (0, {"ready"}, [])
    run_loop(world, HookedLearner(tiny), tmp_path, url=FAR, stop_updates=3)
    assert _states(world) == ["trained"] * 3
    _assert_undisturbed_weights(world, tiny, tmp_path)


@pytest.mark.parametrize("groups", [1, 2])
def test_an_upload_that_cannot_succeed_ends_the_trainer_while_it_waits_or_computes(
    store: Store, tiny: Path, tmp_path: Path, groups: int
) -> None:
    world = _begin(store, groups)
    faulty_filesystem.register()
    FaultyFileSystem.faults[:] = [FileNotFoundError("the bucket was deleted")]
    with pytest.raises(CheckpointError, match="the bucket was deleted"):
        run_loop(world, HookedLearner(tiny), tmp_path, url=FAR)
    assert (world.run().version, set(_states(world))) == (0, {"ready"})
    assert _stored(tmp_path) == []
    run_loop(world, HookedLearner(tiny), tmp_path, url=FAR, stop_updates=groups)
    assert _states(world) == ["trained"] * groups


def test_staleness_counts_from_the_version_that_is_being_published(
    world: World, tiny: Path, tmp_path: Path, upload: SlowUpload
) -> None:
    """All groups were sampled by version 0: none is fresh enough for an update from version 1."""
    bounds = InboxBounds(1, 1, 0, 0, None, 3)
    stop = threading.Event()
    found: list[list[str]] = []

    def watch() -> None:
        eventually(
            lambda: _states(world) == ["ready", "stale", "stale"],
            within_s=60,
            text=lambda: str(_states(world)),
        )
        found.append(_states(world))
        upload.end()
        stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    run_loop(world, HookedLearner(tiny), tmp_path, url=FAR, bounds=bounds, stop=stop)
    watcher.join(WAIT_S)
    assert found == [["ready", "stale", "stale"]]
    assert (world.run().version, _states(world)) == (1, ["trained", "stale", "stale"])


def test_a_stop_rule_ends_the_run_after_the_commit_of_its_last_update(
    world: World, tiny: Path, tmp_path: Path, upload: SlowUpload
) -> None:
    found: list[tuple[str, int]] = []

    def watch() -> None:
        assert upload.began.wait(WAIT_S)
        ended.wait(2.0)  # more than a look at the stop rules
        found.append((world.run().state, world.run().version))
        upload.end()

    ended, watcher = threading.Event(), threading.Thread(target=watch)
    watcher.start()
    run_loop(world, HookedLearner(tiny), tmp_path, url=FAR, stop_updates=1)
    ended.set()
    watcher.join(WAIT_S)
    assert found == [(RunState.RUNNING, 0)]
    assert (world.run().state, world.run().version) == (RunState.COMPLETED, 1)
    assert _states(world)[0] == "trained"


def test_a_run_that_a_person_stops_commits_neither_the_update_in_flight_nor_the_next(
    world: World, tiny: Path, tmp_path: Path, upload: SlowUpload
) -> None:
    def during() -> None:
        world.store.transact(
            lambda session: runs.move_run(session, world.run_id, RunState.STOPPED, "by command")
        )
        upload.end()

    run_loop(world, HookedLearner(tiny, {2: during}), tmp_path, url=FAR)
    assert (world.run().state, world.run().version) == (RunState.STOPPED, 0)
    assert world.ask("SELECT COUNT(*) FROM updates") == [(0,)]
    assert _stored(tmp_path) == []
    assert "trained" not in _states(world)
