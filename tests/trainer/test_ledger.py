import errno
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial, reduce
from pathlib import Path
from typing import Any

import faulty_filesystem
import pytest
import torch
from faulty_filesystem import FaultyFileSystem
from inline import InlineExecutor
from run_transitions import World
from running import eventually
from sqlalchemy import event

from agentrl import broker
from agentrl.broker.api import Consumer, Publisher
from agentrl.broker.messages import CheckpointPublished, Message
from agentrl.broker.queue_names import EVENTS
from agentrl.checkpoints import manifest
from agentrl.checkpoints.checkpoint_store import CheckpointStore, TransferLimits, WeightsAway, fetch
from agentrl.checkpoints.manifest import Probe, SaveReport
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer
from agentrl.core.errors import BrokerError, CheckpointError, StoreError, StoreUnavailable
from agentrl.core.trained_hash import ROOT, running_hash
from agentrl.core.types import GroupState, Reason, RunState
from agentrl.db.store import Store
from agentrl.db.transitions import runs
from agentrl.db.transitions.updates import (
    LineageChanged,
    RunEnded,
    TeacherScore,
    TrainerReplaced,
    UpdateRefused,
)
from agentrl.ops.processes.trainer import ledger_config
from agentrl.trainer.batch import Batch, TakenGroups, TrainableGroup
from agentrl.trainer.checkpoint_writer import Position
from agentrl.trainer.engines.learner import Metrics, WeightsWriter, proceed
from agentrl.trainer.ledger import Ledger
from agentrl.trainer.retention import RetentionRules, retain
from agentrl.trainer.snapshots.snapshots import State

EVERY = 2
METRICS = Metrics({"loss": 0.5})


class NoRoom(Mapping[str, torch.Tensor]):
    """Tensors that the disk does not take while `full()`."""

    def __init__(self, full: Callable[[], bool]) -> None:
        self._full = full
        self._tensors = {"count": torch.tensor([1])}

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._full():
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class Counter:
    """A learner whose weights are the number of its updates.

    `refusals`: how often the disk takes no checkpoint; `full`: whether it takes no snapshot.
    """

    def __init__(self, *, refusals: int = 0, full: Callable[[], bool] | None = None) -> None:
        self.count = 0
        self.refusals = refusals
        self.full = full

    def update(self, batch: Batch, before_step: Callable[[], object] = proceed) -> Metrics:  # noqa: ARG002
        before_step()
        self.count += 1
        return Metrics({"loss": 0.5})

    def copy_weights(self) -> WeightsWriter:
        count = self.count

        def write(directory: Path) -> SaveReport:
            if self.refusals > 0:
                self.refusals -= 1
                raise OSError(errno.ENOSPC, "No space left on device")
            (directory / "count.json").write_text(json.dumps(count))
            return SaveReport()

        return write

    def probe(self) -> Probe:
        return Probe([7, self.count], [-0.5])

    def state(self) -> State:
        if self.full is not None:
            return State(NoRoom(self.full), {})
        return State({"count": torch.tensor([self.count])}, {})

    def load_state(self, state: State) -> None:
        self.count = int(state.tensors["count"][0])


@pytest.fixture
def world(store: Store) -> World:
    return World.begin(store)


@pytest.fixture
def queue(world: World, tmp_path: Path) -> Iterator[tuple[Publisher, Consumer]]:
    with closing(broker.connect(f"sqlite:///{tmp_path / 'queue.db'}")) as link:
        link.declare_run(world.run_id)
        with closing(link.subscriber(world.run_id)) as events:
            yield link.publisher(), events


@pytest.fixture
def publisher(queue: tuple[Publisher, Consumer]) -> Publisher:
    return queue[0]


def _announce(world: World, publisher: Publisher) -> Callable[[Message], None]:
    return partial(publisher.publish, EVENTS, world.run_id)


def _ledger(
    world: World, publisher: Publisher, home: Path, config: Config | None = None, **rules: Any
) -> Ledger:
    config = config or Config(
        tasks={"dbbench": Task()}, run=Run(**rules), trainer=Trainer(snapshot_every=EVERY)
    )
    return Ledger(
        ledger_config(config),
        world.run_id,
        world.store,
        _announce(world, publisher),
        CheckpointStore(home / "checkpoints"),
        background=InlineExecutor(),
        publishing=InlineExecutor(),
    )


def _groups(world: World, *positions: int) -> Sequence[TrainableGroup]:
    ready = [world.ready(position) for position in positions]
    return [TrainableGroup(bodies[0].group_id, "dbbench", tuple(bodies)) for bodies in ready]


def _step(world: World, ledger: Ledger, learner: Counter, at: Position, position: int) -> Position:
    groups = _groups(world, position)
    learner.count += 1
    return _commit(ledger, learner, at, TakenGroups(groups), Metrics({"loss": 0.5}))


def _commit(  # noqa: PLR0917
    ledger: Ledger,
    learner: Counter,
    at: Position,
    groups: TakenGroups,
    metrics: Metrics,
    started_at: float | None = None,
) -> Position:
    """Publish an update and wait for its commit."""
    begun = ledger.started() if started_at is None else started_at
    then = ledger.publish(learner, at, groups, metrics, begun)
    ledger.settle()
    return then


def _trained(
    world: World, publisher: Publisher, home: Path, updates: int
) -> tuple[Ledger, Counter, Position]:
    """A trainer after so many updates."""
    ledger, learner = _ledger(world, publisher, home), Counter()
    at = ledger.resume(learner)
    for position in range(updates):
        at = _step(world, ledger, learner, at, position)
    return ledger, learner, at


def _count(world: World, home: Path) -> Mapping[int, int]:
    """What the directory of each live version holds."""
    rows = world.ask("SELECT version, path FROM checkpoints WHERE state = 'live' AND version > 0")
    return {v: json.loads((Path(path) / "count.json").read_text()) for v, path in rows}


def test_an_update_is_published_committed_and_announced(
    world: World, queue: tuple[Publisher, Consumer], tmp_path: Path
) -> None:
    publisher, events = queue
    ledger, learner = _ledger(world, publisher, tmp_path), Counter()
    at = ledger.resume(learner)
    assert at.version == 0
    at = _step(world, ledger, learner, at, 0)
    assert world.run().version == at.version == 1
    assert _count(world, tmp_path) == {1: 1}
    written = manifest.verify(tmp_path / "checkpoints" / at.checkpoint_id)
    assert written.probe == Probe([7, 1], [-0.5])
    learned = [sha256 for (sha256,) in world.ask("SELECT sha256 FROM update_groups")]
    assert written.trained_hash == at.trained_hash == running_hash(ROOT, learned)
    rows = world.ask("SELECT trained_hash FROM checkpoints WHERE version = 1")
    assert rows == [(at.trained_hash,)]
    (delivery,) = events.receive(9, 2.0)
    told: Message = delivery.message
    assert told == CheckpointPublished(
        run_id=world.run_id, version=1, checkpoint_id=at.checkpoint_id
    )
    assert world.accounting() == []


def test_a_lost_announcement_only_delays(world: World, tmp_path: Path) -> None:
    class Away:
        def publish(self, *_message: object) -> None:
            raise BrokerError("the broker is away")

        def close(self) -> None: ...

    ledger, learner = _ledger(world, Away(), tmp_path), Counter()
    assert _step(world, ledger, learner, ledger.resume(learner), 0).version == 1
    assert world.run().version == 1


def test_a_crash_between_publish_and_commit_leaves_no_row_and_the_next_start_works(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    ledger, learner = _ledger(world, publisher, tmp_path), Counter()
    at = ledger.resume(learner)
    groups = _groups(world, 0)

    @event.listens_for(world.store.engine, "before_cursor_execute")
    def crash(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if statement.startswith("INSERT INTO update_groups"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _commit(ledger, learner, at, TakenGroups(groups), Metrics({}), 0.0)
    event.remove(world.store.engine, "before_cursor_execute", crash)
    assert world.ask("SELECT COUNT(*) FROM updates") == [(0,)]
    assert world.ask("SELECT MAX(version) FROM checkpoints") == [(0,)]
    assert world.group(groups[0].group_id).state == GroupState.READY

    again, fresh = _ledger(world, publisher, tmp_path), Counter()
    fresh.count = 1
    at = _commit(again, fresh, again.resume(Counter()), TakenGroups(groups), Metrics({}), 0.0)
    assert at.version == 1
    assert world.accounting() == []


@pytest.mark.parametrize(
    ("meanwhile", "error"),
    [
        ("UPDATE runs SET trainer_epoch = trainer_epoch + 1", TrainerReplaced),
        ("UPDATE runs SET state = 'stopped'", RunEnded),
        ("UPDATE groups SET state = 'open'", UpdateRefused),
        ("UPDATE episodes SET fence = 2 WHERE member = 0", UpdateRefused),
    ],
)
def test_a_refused_update_leaves_neither_rows_nor_files(
    world: World, publisher: Publisher, tmp_path: Path, meanwhile: str, error: type[Exception]
) -> None:
    ledger, learner = _ledger(world, publisher, tmp_path), Counter()
    at = ledger.resume(learner)
    groups = _groups(world, 0)
    world.sql(meanwhile)
    with pytest.raises(error):
        _commit(ledger, learner, at, TakenGroups(groups), Metrics({}), 0.0)
    assert world.ask("SELECT COUNT(*) FROM updates") == [(0,)]
    assert world.run().version == 0
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert world.ask("SELECT transition, subject, fence, found FROM refusals") == [
        ("commit", world.run_id, 1, error.__name__)
    ]


def test_a_resume_continues_the_snapshot_and_rolls_back_what_came_later(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    ledger, learner, at = _trained(world, publisher, tmp_path, EVERY + 1)
    fresh = Counter()
    after = _ledger(world, publisher, tmp_path)
    again = after.resume(fresh)
    assert (again.version, fresh.count) == (EVERY, EVERY)
    assert _count(world, tmp_path) == {1: 1, 2: 2}
    assert world.ask("SELECT position FROM groups WHERE state = 'rolled_back'") == [(EVERY,)]
    assert world.accounting() == []
    with pytest.raises(TrainerReplaced):
        _step(world, ledger, learner, at, 7)
    at = _step(world, after, fresh, again, 8)
    assert _count(world, tmp_path) == {1: 1, 2: 2, 3: 3}
    assert world.accounting() == []


def test_a_snapshot_at_the_end_makes_the_last_update_resumable(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    ledger, learner, at = _trained(world, publisher, tmp_path, 1)
    ledger.snapshot(learner, at)
    ledger.snapshot(learner, at)
    fresh = Counter()
    assert _ledger(world, publisher, tmp_path).resume(fresh) == at
    assert fresh.count == 1


def _alarms(world: World) -> list[str]:
    return [name for (name,) in world.ask("SELECT name FROM raised_alarms ORDER BY name")]


def test_a_disk_without_room_for_a_snapshot_is_an_alarm_and_the_next_update_tries_again(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    room = threading.Event()
    ledger, learner = _ledger(world, publisher, tmp_path), Counter(full=lambda: not room.is_set())
    at = ledger.resume(learner)
    for position in range(EVERY + 1):
        at = _step(world, ledger, learner, at, position)
    assert (at.version, _alarms(world)) == (EVERY + 1, ["snapshot_failed"])
    assert world.ask("SELECT 1 FROM checkpoints WHERE snapshot_path IS NOT NULL") == []
    room.set()
    at = _step(world, ledger, learner, at, EVERY + 1)
    assert world.ask("SELECT version FROM checkpoints WHERE snapshot_path IS NOT NULL") == [
        (at.version,)
    ]
    _step(world, ledger, learner, at, EVERY + 2)
    assert _alarms(world) == []
    assert _ledger(world, publisher, tmp_path).resume(Counter()) == at


def test_a_trainer_that_ends_on_a_full_disk_ends_without_a_snapshot(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    ledger, learner = _ledger(world, publisher, tmp_path), Counter(full=lambda: True)
    at = _step(world, ledger, learner, ledger.resume(learner), 0)
    ledger.snapshot(learner, at)
    assert world.ask("SELECT 1 FROM checkpoints WHERE snapshot_path IS NOT NULL") == []


def test_the_older_snapshot_makes_room_for_a_new_one(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    """The disk holds two: the one before the newest goes when the third finds no room."""
    home = tmp_path / "checkpoints"
    ledger = _ledger(world, publisher, tmp_path)
    learner = Counter(full=lambda: len([*home.glob("*.snapshot")]) >= 2)
    at = ledger.resume(learner)
    for position in range(3 * EVERY):
        at = _step(world, ledger, learner, at, position)
    named = world.ask("SELECT version FROM checkpoints WHERE snapshot_path IS NOT NULL")
    assert sorted(named) == [(2 * EVERY,), (3 * EVERY,)]
    assert _alarms(world) == []


def test_a_checkpoint_waits_until_the_disk_has_room(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    ledger, learner = _ledger(world, publisher, tmp_path), Counter(refusals=3)
    at = _step(world, ledger, learner, ledger.resume(learner), 0)
    assert (at.version, learner.refusals) == (1, 0)
    assert _count(world, tmp_path) == {1: 1}


def test_a_trainer_that_waits_for_the_disk_ends_when_it_is_told_to(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    stop = threading.Event()
    config = Config(tasks={"dbbench": Task()})
    checkpoint_files = CheckpointStore(tmp_path / "checkpoints", stop=stop)
    ledger = Ledger(
        ledger_config(config),
        world.run_id,
        world.store,
        _announce(world, publisher),
        checkpoint_files,
    )
    learner = Counter(refusals=10**9)
    at = ledger.resume(learner)
    stop.set()
    with pytest.raises(WeightsAway, match="No space left on device"):
        _step(world, ledger, learner, at, 0)
    assert world.run().version == 0
    assert [*checkpoint_files.home.iterdir()] == []


class Waiting(Counter):
    """Whose snapshot the disk takes when the test says so."""

    def __init__(self, may_write: threading.Event) -> None:
        def wait() -> bool:
            assert may_write.wait(60.0)
            return False

        super().__init__(full=wait)


def test_updates_go_on_while_a_snapshot_is_written_and_its_checkpoint_is_kept(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    """In a thread; with `keep_checkpoints` 1 only its snapshot speaks for version `EVERY`."""
    may_write = threading.Event()
    learner = Waiting(may_write)
    trainer = Trainer(snapshot_every=EVERY, keep_checkpoints=1)
    config, checkpoint_files = (
        Config(tasks={"dbbench": Task()}, trainer=trainer),
        CheckpointStore(tmp_path / "c"),
    )
    ledger = Ledger(
        ledger_config(config),
        world.run_id,
        world.store,
        _announce(world, publisher),
        checkpoint_files,
    )
    at = ledger.resume(learner)
    for position in range(2 * EVERY + 1):
        at = _step(world, ledger, learner, at, position)
    named = "SELECT version FROM checkpoints WHERE state = 'live' AND snapshot_path IS NOT NULL"
    assert (at.version, world.ask(named)) == (2 * EVERY + 1, [])
    may_write.set()
    eventually(
        lambda: not ledger.end_if_due(at) and world.ask(named) == [(EVERY,)],
        within_s=60,
        text=lambda: str(world.ask(named)),
    )
    ledger.snapshot(learner, at)
    assert sorted(world.ask(named)) == [(EVERY,), (at.version,)]
    assert _alarms(world) == []
    assert world.accounting() == []


def _damage_snapshot(world: World, version: int) -> None:
    ((path,),) = world.ask("SELECT snapshot_path FROM checkpoints WHERE version = :v", v=version)
    (Path(path) / "state.json").write_text("{}  ")


def test_a_damaged_snapshot_is_passed_over_for_the_one_before(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    _trained(world, publisher, tmp_path, 2 * EVERY)
    _damage_snapshot(world, 2 * EVERY)
    fresh = Counter()
    again = _ledger(world, publisher, tmp_path).resume(fresh)
    assert (again.version, fresh.count) == (EVERY, EVERY)
    assert world.run().version == EVERY
    assert world.accounting() == []


def test_where_no_snapshot_is_sound_nothing_is_rolled_back(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    """Their folder may only be away: a person decides."""
    _trained(world, publisher, tmp_path, 2 * EVERY)
    _damage_snapshot(world, EVERY)
    _damage_snapshot(world, 2 * EVERY)
    with pytest.raises(CheckpointError, match=r"no snapshot of the run can be used.*state\.json"):
        _ledger(world, publisher, tmp_path).resume(Counter())
    assert world.run().version == 2 * EVERY


def test_a_snapshot_that_its_trainer_could_not_name_is_found(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    """The database was away when the trainer was told to stop."""
    ledger, learner, at = _trained(world, publisher, tmp_path, EVERY + 1)
    ledger.snapshot(learner, at)
    world.sql("UPDATE checkpoints SET snapshot_path = NULL WHERE version = :v", v=at.version)
    fresh = Counter()
    assert _ledger(world, publisher, tmp_path).resume(fresh) == at
    assert fresh.count == at.version
    named = world.ask("SELECT version FROM checkpoints WHERE snapshot_path IS NOT NULL")
    assert (at.version,) in named


def _ended_by_the_database(
    world: World,
    publisher: Publisher,
    home: Path,
    group: TrainableGroup,
    error: StoreError,
    *,
    metrics: Metrics = METRICS,
    left_out: Sequence[TrainableGroup] = (),
) -> None:
    """A trainer makes an update from version 1 that it cannot commit."""
    ledger, learner = _ledger(world, publisher, home), Counter()
    at = _step(world, ledger, learner, ledger.resume(learner), 0)
    learner.count += 1

    @event.listens_for(world.store.engine, "before_cursor_execute")
    def away(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if statement.startswith("INSERT INTO update_groups"):
            raise error

    with pytest.raises(type(error)):
        _commit(ledger, learner, at, TakenGroups([group], left_out), metrics, 1.0)
    event.remove(world.store.engine, "before_cursor_execute", away)
    assert world.run().version == 1


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreError("another password")])
def test_an_update_that_was_not_committed_before_the_end_is_committed_by_the_next_trainer(
    world: World, publisher: Publisher, tmp_path: Path, error: StoreError
) -> None:
    (group,) = _groups(world, 7)
    _ended_by_the_database(world, publisher, tmp_path, group, error)
    fresh, after = Counter(), _ledger(world, publisher, tmp_path)
    at = after.resume(fresh)
    assert (at.version, fresh.count, world.run().version) == (2, 2, 2)
    assert world.group(group.group_id).state == GroupState.TRAINED
    assert world.ask("SELECT state, COUNT(*) FROM updates GROUP BY state") == [("committed", 2)]
    at = _step(world, after, fresh, at, 1)
    assert at.version == 3
    assert world.accounting() == []


def test_a_teachers_scores_are_committed_with_the_update_also_by_the_next_trainer(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    (group,) = _groups(world, 7)
    score = TeacherScore("specialist", "other-v000009-abc", "d" * 64, 0.25)
    scores = [score, *(None for _ in group.members[1:])]
    metrics = Metrics({"loss": 0.5}, teacher_scores=scores)
    away = StoreUnavailable("away")
    _ended_by_the_database(world, publisher, tmp_path, group, away, metrics=metrics)
    _ledger(world, publisher, tmp_path).resume(Counter())
    rows = world.ask(
        "SELECT episode_id, teacher, teacher_checkpoint, teacher_digest, reverse_kl"
        " FROM update_groups WHERE teacher IS NOT NULL"
    )
    named = group.members[0].episode_id
    assert rows == [(named, "specialist", "other-v000009-abc", "d" * 64, 0.25)]


def _far_ledger(
    world: World, publisher: Publisher, home: Path, stop: threading.Event | None = None
) -> Ledger:
    """Checkpoints lie under a URL; one try for each file."""
    limits = TransferLimits(upload_s=0.0, fetch_s=0.0, call_s=60.0)
    stopped, folders = stop or threading.Event(), (home / "checkpoints", home / "cache")
    store = CheckpointStore(*folders, "faulty://far", stopped, limits)
    config = ledger_config(Config(tasks={"dbbench": Task()}))
    announce, inline = _announce(world, publisher), InlineExecutor()
    return Ledger(config, world.run_id, world.store, announce, store, publishing=inline)


def test_an_update_that_failed_stays_so_and_no_snapshot_of_it_is_taken(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    ledger, learner = _ledger(world, publisher, tmp_path), Counter()
    at = _step(world, ledger, learner, ledger.resume(learner), 0)
    (group,) = _groups(world, 7)
    learner.count += 1
    world.sql("UPDATE episodes SET fence = 2 WHERE group_id = :g", g=group.group_id)
    then = ledger.publish(learner, at, TakenGroups([group]), METRICS, 1.0)
    for ask in (
        ledger.settle,
        lambda: ledger.snapshot(learner, then),
        lambda: ledger.publish(learner, then, TakenGroups([group]), METRICS, 1.0),
    ):
        with pytest.raises(UpdateRefused):
            ask()
    assert world.run().version == 1
    assert [*(tmp_path / "checkpoints").glob("*.snapshot")] == []


def test_an_update_whose_object_store_was_away_until_the_stop_is_committed_by_the_next_trainer(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    faulty_filesystem.register()
    stop, learner = threading.Event(), Counter()
    ledger = _far_ledger(world, publisher, tmp_path, stop)
    at = _step(world, ledger, learner, ledger.resume(learner), 0)
    (group,) = _groups(world, 7)
    FaultyFileSystem.faults[:] = [OSError("the object store is away")] * 1000
    stop.set()
    learner.count += 1
    with pytest.raises(WeightsAway, match="the object store is away"):
        _commit(ledger, learner, at, TakenGroups([group]), Metrics({"loss": 0.5}), 1.0)
    assert world.run().version == 1
    FaultyFileSystem.faults.clear()
    fresh = Counter()
    again = _far_ledger(world, publisher, tmp_path).resume(fresh)
    assert (again.version, fresh.count, world.run().version) == (2, 2, 2)
    ((path,),) = world.ask("SELECT path FROM checkpoints WHERE version = 2")
    fetched = fetch(path, tmp_path / "elsewhere")
    assert json.loads((fetched / "count.json").read_text()) == 2
    assert world.accounting() == []


def test_an_update_that_was_kept_and_lost_its_weights_since_is_not_committed(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    faulty_filesystem.register()
    stop, learner = threading.Event(), Counter()
    ledger = _far_ledger(world, publisher, tmp_path, stop)
    at = ledger.resume(learner)
    FaultyFileSystem.faults[:] = [OSError("the object store is away")] * 1000
    stop.set()
    (group,) = _groups(world, 7)
    with pytest.raises(WeightsAway):
        _commit(ledger, learner, at, TakenGroups([group]), Metrics({}), 1.0)
    FaultyFileSystem.faults.clear()
    shutil.rmtree(tmp_path / "cache")
    assert _far_ledger(world, publisher, tmp_path).resume(Counter()).version == 0
    assert world.group(group.group_id).state == GroupState.READY


def test_an_update_that_was_kept_closes_the_groups_left_out_of_it(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    group, other = _groups(world, 7, 8)
    away = StoreUnavailable("away")
    _ended_by_the_database(world, publisher, tmp_path, group, away, left_out=[other])
    assert world.group(other.group_id).state == GroupState.READY
    assert _ledger(world, publisher, tmp_path).resume(Counter()).version == 2
    assert world.group(other.group_id).reason == Reason.LOW_SPREAD


def test_an_update_that_was_kept_and_whose_group_changed_since_is_not_committed(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    (group,) = _groups(world, 7)
    _ended_by_the_database(world, publisher, tmp_path, group, StoreUnavailable("away"))
    world.sql("UPDATE groups SET state = 'open' WHERE group_id = :g", g=group.group_id)
    fresh = Counter()
    at = _ledger(world, publisher, tmp_path).resume(fresh)
    assert (at.version, fresh.count) == (0, 0), "there is no snapshot before it"
    assert [*(tmp_path / "checkpoints").glob("*.snapshot")] == []


def test_a_snapshot_that_learned_from_other_bodies_than_its_row_says_is_passed_over(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    _trained(world, publisher, tmp_path, 2 * EVERY)
    other = "0" * 64
    world.sql("UPDATE checkpoints SET trained_hash = :h WHERE version = :v", h=other, v=2 * EVERY)
    assert _ledger(world, publisher, tmp_path).resume(Counter()).version == EVERY


def test_a_database_that_lost_its_last_commit_learns_from_no_body_twice(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    """As after a failover to a replica that lagged: the weights know more than the rows."""
    ledger, learner = _ledger(world, publisher, tmp_path), Counter()
    at = ledger.resume(learner)
    groups = _groups(world, *range(EVERY + 1))
    for group in groups:
        learner.count += 1
        at = _commit(ledger, learner, at, TakenGroups([group]), Metrics({}), 0.0)
    lost, last = at.checkpoint_id, groups[-1]
    for table, column in (("update_groups", "update_id"), ("updates", "update_id")):
        world.sql(f"DELETE FROM {table} WHERE {column} = :u", u=f"{lost}.update")  # noqa: S608
    world.sql("DELETE FROM checkpoints WHERE checkpoint_id = :c", c=lost)
    world.sql("UPDATE runs SET version = version - 1")
    world.sql(
        "UPDATE groups SET state = 'ready', closed_at = NULL WHERE group_id = :g", g=last.group_id
    )
    with pytest.raises(LineageChanged):
        _commit(ledger, learner, at, TakenGroups([last]), Metrics({}), 0.0)
    fresh, after = Counter(), _ledger(world, publisher, tmp_path)
    again = after.resume(fresh)
    assert (again.version, fresh.count) == (EVERY, EVERY)
    again = _commit(after, fresh, again, TakenGroups([last]), Metrics({}), 0.0)
    bodies = [[member.sha256 for member in group.members] for group in groups]
    assert again.trained_hash == reduce(running_hash, bodies, ROOT)
    assert world.accounting() == []


def _present(world: World, home: Path) -> tuple[list[int], set[str]]:
    """Versions of live rows, and versions of the directories there are (s: a snapshot)."""
    rows = world.ask("SELECT version FROM checkpoints WHERE state = 'live' ORDER BY version")
    names = [path.name for path in (home / "checkpoints").iterdir()]
    found = {
        f"{int(name.split('-v')[1][:6])}{'s' if name.endswith('.snapshot') else ''}"
        for name in names
    }
    return [version for (version,) in rows], found


def _long(world: World, publisher: Publisher, home: Path, tracks: list[str]) -> Ledger:
    config = Config(
        tasks={"dbbench": Task()},
        trainer=Trainer(snapshot_every=EVERY, keep_checkpoints=2),
        policy=[PolicyServer(name="p", tracks=tracks)],
    )
    return _ledger(world, publisher, home, config)


def test_what_nothing_needs_leaves_the_disk(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    world.sql("UPDATE servings SET live_until = 1")
    ledger, learner = _long(world, publisher, tmp_path, ["current"]), Counter()
    at = ledger.resume(learner)
    for position in range(7):
        at = _step(world, ledger, learner, at, position)
    assert _present(world, tmp_path) == ([0, 4, 6, 7], {"4", "4s", "6", "6s", "7"})
    assert world.ask("SELECT COUNT(*) FROM checkpoints WHERE state = 'deleted'") == [(4,)]
    assert world.accounting() == []


def test_what_a_track_a_server_or_an_open_group_needs_stays(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    tracks = ["current", "lagged(3)", "refreshed(5)"]
    ledger, learner = _long(world, publisher, tmp_path, tracks), Counter()
    at = ledger.resume(learner)
    for position in range(9):
        at = _step(world, ledger, learner, at, position)
        if at.version == 2:
            world.sql("UPDATE servings SET checkpoint_id = :c, version = 2", c=at.checkpoint_id)
        if at.version == 3:
            world.ready(20)
            world.sql("UPDATE steps SET checkpoint_id = :c", c=at.checkpoint_id)
    live, there = _present(world, tmp_path)
    assert live == [0, 2, 3, 5, 6, 7, 8, 9]
    assert there == {"2", "3", "5", "6", "6s", "7", "8", "8s", "9"}


def test_a_trainer_that_begins_removes_what_no_row_names(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    ledger, learner, at = _trained(world, publisher, tmp_path, 1)
    ledger.snapshot(learner, at)
    home = tmp_path / "checkpoints"
    kept = set(home.iterdir())
    (home / f".{world.run_id}-v000009-abc.partial").mkdir()
    (home / f"{world.run_id}-v000009-def.snapshot").mkdir()
    _ledger(world, publisher, tmp_path).resume(Counter())
    assert set(home.iterdir()) == kept


def test_a_trainer_that_was_replaced_removes_nothing(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    ledger = _long(world, publisher, tmp_path, ["current"])
    ledger.resume(Counter())
    old = world.checkpoint(1)
    with world.store.write() as session:
        for row in (old, world.checkpoint(2), world.checkpoint(3), world.checkpoint(4)):
            session.add(row)
        found = retain(session, world.run_id, RetentionRules(keep=1, tracks=["current"], epoch=99))
    assert found == []


def test_a_run_ends_by_updates_hours_or_success(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    at = Position(3, "c")
    assert not _ledger(world, publisher, tmp_path).end_if_due(at)
    assert not _ledger(world, publisher, tmp_path, stop_updates=4).end_if_due(at)
    assert not _ledger(world, publisher, tmp_path, stop_hours=1.0).end_if_due(at)
    assert not _ledger(world, publisher, tmp_path, stop_success=0.5).end_if_due(at)
    assert world.run().state == RunState.RUNNING
    replaced = _ledger(world, publisher, tmp_path, stop_updates=3)
    replaced.epoch = -1
    with pytest.raises(TrainerReplaced):
        replaced.end_if_due(at)
    assert world.run().state == RunState.RUNNING
    assert _ledger(world, publisher, tmp_path, stop_updates=3).end_if_due(at)
    assert (world.run().state, world.run().reason) == (RunState.COMPLETED, "3 updates")


def test_success_is_that_of_the_worst_task(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    ledger, learner = _ledger(world, publisher, tmp_path, stop_success=0.5), Counter()
    at = ledger.resume(learner)
    _step(world, ledger, learner, at, 0)
    assert not ledger.end_if_due(Position(9, "c"))
    assert ledger.end_if_due(Position(10, "c"))
    assert world.run().reason == "success 0.5"


def test_success_waits_for_every_task_of_the_configuration(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    run = Run(stop_success=0.5)
    config = Config(tasks={"dbbench": Task(), "alfworld": Task()}, run=run)
    ledger, learner = (
        Ledger(
            ledger_config(config),
            world.run_id,
            world.store,
            _announce(world, publisher),
            CheckpointStore(tmp_path),
            publishing=InlineExecutor(),
        ),
        Counter(),
    )
    _step(world, ledger, learner, ledger.resume(learner), 0)
    assert not ledger.end_if_due(Position(10, "c"))


def test_hours_count_from_the_making_of_the_run(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    world.sql("UPDATE runs SET created_at = created_at - 7200")
    assert _ledger(world, publisher, tmp_path, stop_hours=1.5).end_if_due(Position(0, "c"))
    epochs = [world.store.transact(lambda s: runs.begin_epoch(s, world.run_id)) for _ in "ab"]
    assert epochs == [1, 2]
