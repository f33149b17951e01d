"""Weights are tied to the bodies that they learned from."""

from pathlib import Path

from run_transitions import World

from agentrl.checkpoints.directories import publish
from agentrl.checkpoints.manifest import SaveReport
from agentrl.db.store import Store
from agentrl.ops.chaos.audit import compare_weights


def test_weights_that_learned_from_other_bodies_than_their_row_says_are_found(
    store: Store, tmp_path: Path
) -> None:
    world = World.begin(store)
    first, second, deleted = tmp_path / "v1", tmp_path / "v1s", tmp_path / "v2"
    for directory, learned in ((first, "a" * 64), (second, "b" * 64)):
        publish(
            directory,
            lambda _target: SaveReport(),
            checkpoint_id="c",
            version=1,
            parent=None,
            trained_hash=learned,
        )

    def found(path: Path, snapshot: Path, learned: str) -> list[str]:
        world.sql(
            "UPDATE checkpoints SET path = :p, snapshot_path = :s, trained_hash = :h",
            p=str(path),
            s=str(snapshot),
            h=learned,
        )
        with store.read() as session:
            return [each.detail.split(":")[0] for each in compare_weights(session, world.run_id)]

    assert found(first, deleted, "a" * 64) == []
    assert found(first, second, "a" * 64) == [str(second)]
    assert found(first, second, "c" * 64) == [str(first), str(second)]
