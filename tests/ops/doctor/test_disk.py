"""What a run takes of a disk."""

import os
from pathlib import Path, PosixPath

import pytest

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.db.registry.tracks import needed_checkpoints
from agentrl.ops.configuration.model_spec import ModelSpec
from agentrl.ops.doctor import disk
from agentrl.trainer.retention import SNAPSHOTS

GIB = 2**30
SHAPE = ModelSpec(
    {"model.layers.0.self_attn.q_proj.weight": (2**15, 2**15)},
    layers=1,
    hidden=2**15,
    inner=1,
    queries=1,
    keys=1,
    vocabulary=1,
    normed=False,
)


def config(text: str) -> Config:
    return config_loading.loads(f'[model]\ndtype = "bfloat16"\n[tasks.dbbench]\n{text}', environ={})


def simulated(every: int, keep: int, tracks: list[str]) -> int:
    """The most versions that the rules of retention keep at once, played through."""
    live, snapshots, most = [(0, "0")], [0], 0
    for version in range(1, 150):
        live.append((version, str(version)))
        if version % every == 0:
            snapshots = [*snapshots, version][-SNAPSHOTS:]
        most = max(most, len(live) - 1)
        used = needed_checkpoints(tracks, live, snapshots[-1]) | {name for _, name in live[-keep:]}
        used |= {"0", *map(str, snapshots)}
        live = [each for each in live if each[1] in used]
    return most


@pytest.mark.parametrize("every", [1, 3, 10, 40])
@pytest.mark.parametrize("keep", [1, 8, 20])
@pytest.mark.parametrize("more", [[], ["lagged(4)"], ["lagged(16)"], ["lagged(4)", "refreshed(7)"]])
def test_no_more_checkpoints_are_kept_than_are_planned_for(
    every: int, keep: int, more: list[str]
) -> None:
    tracks = ["current", *more]
    policy = f'[[policy]]\nname = "p"\ntracks = {tracks}\n'.replace("'", '"')
    trainer = f"[trainer]\nkeep_checkpoints = {keep}\nsnapshot_every = {every}\n"
    planned = disk.most_checkpoints(config(policy + trainer))
    assert 0 <= planned - simulated(every, keep, tracks) <= 3


def test_weights_are_written_as_they_are_served_and_snapshots_with_both_moments() -> None:
    """2 GiB elements."""
    whole = disk.estimate(config("[trainer]\nsnapshot_every = 1"), SHAPE)
    assert (whole.checkpoint, whole.snapshots, whole.snapshot) == (2 * GIB, 3, 12 * GIB)
    assert whole.total == whole.checkpoints * 2 * GIB + 36 * GIB
    assert "snapshots of 12.0 GiB" in whole.words()
    plain = disk.estimate(config('[trainer]\noptimizer = "sgd"'), SHAPE)
    assert plain.snapshot == 4 * GIB
    adapter = disk.estimate(config('[trainer.lora]\nrank = 1\ntargets = ["q_proj"]'), SHAPE)
    assert (adapter.checkpoint, adapter.snapshot) == (4 * 2**16, 12 * 2**16)


def test_a_file_of_many_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").write_bytes(b"12")
    assert disk.bytes_under(tmp_path) == 6
    assert disk.bytes_under(tmp_path / "none") == 0


class RacingPath(PosixPath):
    """A path that a training deletes when it is looked at, if it is named `gone`."""

    def lstat(self) -> os.stat_result:
        if self.name == "gone":
            self.unlink()
        return super().lstat()


def test_files_that_a_training_deletes_meanwhile_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    for name in ("gone", "kept"):
        (tmp_path / "v1" / name).write_bytes(b"1234")
    assert disk.bytes_under(RacingPath(tmp_path)) == 4
    assert not (tmp_path / "v1" / "gone").exists()
