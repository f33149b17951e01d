"""A lineage on a store of its own."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from served_lineage import ServedLineage

from agentrl.db.store import open_store


@pytest.fixture
def lineage(
    tmp_path: Path, migrated_sqlite: Path, save_model: Callable[[str], Path]
) -> Iterator[ServedLineage]:
    shutil.copy(migrated_sqlite, tmp_path / "store.db")
    with closing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        yield ServedLineage(tmp_path, store, save_model)
