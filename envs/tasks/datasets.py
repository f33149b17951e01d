"""Benchmark data: the files of each task, their publishers, and their place on this machine.

Data is never part of the project. It is in one folder per task under the data folder, which is
given by the option `data` or the variable AGENTRL_DATA.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from agentrl.core.errors import ItemError

VARIABLE = "AGENTRL_DATA"


class MissingDataset(ItemError):
    """Raised for a dataset that is not on this machine."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Files of one kind. `paths`: relative to the data folder; `source`: how users get them.

    `package`: the Python package that holds the data, where no files do. `origin`: whether the
    task's option `origin` takes its name; others are read along with those. `instead`: the task's
    other dataset that is enough where this one is not here.
    """

    task: str
    name: str
    paths: tuple[str, ...]
    source: str
    licence: str
    items: str = ""
    origin: bool = True
    instead: str = ""
    package: str = ""

    def missing(self, root: Path | None) -> tuple[str, ...]:
        """Return the paths that do not exist under `root`, and a package that is not installed."""
        packages = (self.package,) if self.package and find_spec(self.package) is None else ()
        return packages + tuple(
            path for path in self.paths if root is None or not (root / path).exists()
        )


def folder(given: str = "") -> Path | None:
    """Return the data folder: `given`, else AGENTRL_DATA, else None.

    Raises MissingDataset where there is no such folder.
    """
    name = given or os.environ.get(VARIABLE, "")
    if name and not Path(name).is_dir():
        raise MissingDataset(
            f"data folder {name} does not exist",
            hint=f"set --data or {VARIABLE} to the data folder",
        )
    return Path(name) if name else None


def locate(dataset: Dataset, given: str = "") -> Path:
    """The data folder, which holds all of the dataset. Raises MissingDataset."""
    where = f"{dataset.task}: dataset {dataset.name}"
    hint = f"run `agentrl data show {dataset.task}`"  # lists missing files and their sources
    try:
        root = folder(given)
    except MissingDataset as error:
        raise MissingDataset(f"{where}: {error}", hint=hint) from error
    if root is None:
        raise MissingDataset(
            f"{where}: there is no data folder, because {VARIABLE} is not set", hint=hint
        )
    if missing := dataset.missing(root):
        raise MissingDataset(f"{where}: {root} has no {missing[0]}", hint=hint)
    return root
