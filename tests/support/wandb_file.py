"""The figures that a file of W&B holds."""

from collections.abc import Iterator
from pathlib import Path

from agentrl.ops.trackers.wandb_file import records


def files(folder: Path, run: str) -> list[Path]:
    """Return the offline files of a run."""
    return sorted(folder.glob(f"wandb/offline-run-*/run-{run}.wandb"))


def figures(folder: Path, run: str) -> Iterator[tuple[int, str, float]]:
    """Return version, name and value of all rows of all of them."""
    for path in files(folder, run):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                row = {i.key or ".".join(i.nested_key): float(i.value_json) for i in items}
                version = int(row.pop("version"))
                yield from ((version, key, row[key]) for key in row if key[0] != "_")
