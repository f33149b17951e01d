"""What a run takes of a disk."""

from pathlib import Path

import pytest

from core import loading
from core.config import Config
from ops import disk
from ops.shape import Shape

GIB = 2**30
SHAPE = Shape(
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
    return loading.loads(f'[model]\ndtype = "bfloat16"\n[tasks.dbbench]\n{text}', environ={})


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("[trainer]\nkeep_checkpoints = 3\nsnapshot_every = 100", 102),
        ("[trainer]\nkeep_checkpoints = 3\nsnapshot_every = 1", 4),
        ("[trainer]\nkeep_checkpoints = 8\nsnapshot_every = 1", 9),
    ],
)
def test_versions_since_the_newest_snapshot_are_kept_and_the_newest_ones(
    text: str, most: int
) -> None:
    """And, while the next is written, the one that it puts out of the count."""
    assert disk.most_checkpoints(config(f'{text}\n[[policy]]\nname = "p"')) == most


def test_a_lag_keeps_what_it_will_want_after_a_return_to_the_snapshot() -> None:
    def most(lag: int) -> int:
        policy = f'[[policy]]\nname = "p"\ntracks = ["current", "lagged({lag})"]\n'
        return disk.most_checkpoints(config(f"{policy}[trainer]\nsnapshot_every = 10"))

    assert most(16) == 16 + 10 + 1
    assert most(4) == 4 + 10 + 2  # the older snapshot's is beyond the lag


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
