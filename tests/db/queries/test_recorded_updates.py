import pytest
from run_transitions import World
from sqlalchemy.orm import Session

from agentrl.core.errors import StoreError
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Update
from agentrl.db.queries.recorded_updates import find_update, seen_members
from agentrl.db.registry import checkpoints
from agentrl.db.transitions import updates


def _seen(world: World, version: int) -> list[tuple[str, bool]]:
    """The groups that an update looked at, and whether it trained on them."""
    with world.store.read() as session:
        update = session.get_one(Update, f"{world.run_id}-u{version}")
        return sorted({(each.group_id, each.learned) for each in seen_members(session, update)})


def _commit_two(world: World) -> None:
    """Commit two updates; each trains on one group and leaves one out."""
    for version in (1, 2):
        trained, other = world.ready(2 * version), world.ready(2 * version + 1)
        new = world.new_update(
            version,
            trained,
            world.begin_epoch(),
            started_at=world.store.clock(),
            left_out=[other[0].group_id],
        )
        world.store.transact(lambda session, new=new: updates.commit_update(session, new))


def _roll_back(world: World) -> int:
    epoch = world.begin_epoch()

    def restart(session: Session) -> int:
        first = checkpoints.live_checkpoints(session, world.run_id)[0]
        return updates.roll_back(session, world.run_id, first, epoch=epoch)

    return world.store.transact(restart)


def test_an_update_that_was_rolled_back_has_seen_what_it_left_out(world: World) -> None:
    _commit_two(world)
    seen = {version: _seen(world, version) for version in (1, 2)}
    name = f"{world.run_id}-dbbench"
    assert seen == {
        1: [(f"{name}-2", True), (f"{name}-3", False)],
        2: [(f"{name}-4", True), (f"{name}-5", False)],
    }
    assert _roll_back(world) == 2
    assert {version: _seen(world, version) for version in (1, 2)} == seen


def test_an_update_that_does_not_exist_is_refused_with_those_that_do(world: World) -> None:
    def refusal(name: str) -> StoreError:
        with world.store.read() as session, pytest.raises(StoreError) as error:
            find_update(session, session.get_one(Run, world.run_id), name)
        return error.value

    assert refusal("1").hint == "the run has no update yet"
    _commit_two(world)
    for name in ("0", "3", "9" * 20, "u3"):
        error = refusal(name)
        assert f"has no update {name}" in str(error)
        assert error.hint == "choose a version from 1 to 2"
