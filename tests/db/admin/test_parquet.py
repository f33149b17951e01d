import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from known_runs import write_known_runs
from running import ROOT
from sqlalchemy import select, text

from agentrl.core.errors import StoreError
from agentrl.db.admin import migrate
from agentrl.db.admin.parquet import TABLES, ExportRequest, export
from agentrl.db.admin.readonly import open_history
from agentrl.db.models.runs import Run
from agentrl.db.store import Store

PEAK = """
import resource, sys
from pathlib import Path
import pyarrow.parquet
from agentrl.db.admin.parquet import ExportRequest, export
from agentrl.db.admin.readonly import open_history
store = open_history(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
request = ExportRequest(["trajectories"], bodies=True)
print(export(store, Path(sys.argv[2]), request)["trajectories"])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.fixture
def told(store: Store) -> Store:
    write_known_runs(store)
    return store


@pytest.fixture
def history(told: Store) -> Iterator[Store]:
    """The story, as consoles open it."""
    url = told.engine.url.render_as_string(hide_password=False)
    with closing(open_history(url)) as opened:
        yield opened


def _read(folder: Path, table: str) -> list[dict[str, Any]]:
    return pq.read_table(folder / f"{table}.parquet").to_pylist()


def test_what_is_read_back_is_what_the_tables_hold(
    told: Store, history: Store, tmp_path: Path
) -> None:
    with told.write() as session:
        session.execute(text("UPDATE steps SET trained = NULL WHERE number = 1"))
    rows = export(history, tmp_path / "out", ExportRequest(list(TABLES), bodies=True))
    assert min(rows.values()) > 0
    with history.read() as session:
        for name, table in TABLES.items():
            found = _read(tmp_path / "out", name)
            if name in ("updates", "evaluations"):
                found = [row | {"metrics": json.loads(row["metrics"])} for row in found]
            stored = [dict(row._mapping) for row in session.execute(select(table))]
            assert len(found) == rows[name]
            key = [column.name for column in table.primary_key]
            ordered = [
                sorted(each, key=lambda row: [row[k] for k in key]) for each in (found, stored)
            ]
            assert ordered[0] == ordered[1], name
    assert rows["episodes"] == 16
    manifest = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (manifest["schema"], manifest["rows"]) == (migrate.head(), rows)


def test_columns_have_the_types_of_the_tables(history: Store, tmp_path: Path) -> None:
    tables = ["episodes", "steps", "trajectories"]
    export(history, tmp_path / "out", ExportRequest(tables, bodies=True))
    episodes = pq.read_schema(tmp_path / "out" / "episodes.parquet")
    named = {field.name: (str(field.type), field.nullable) for field in episodes}
    assert named["episode_id"] == ("large_string", False)
    assert named["fence"] == ("int64", False)
    assert named["score"] == ("double", True)
    trained = pq.read_schema(tmp_path / "out" / "steps.parquet").field("trained")
    assert (str(trained.type), trained.nullable) == ("bool", True)
    bodies = pq.read_schema(tmp_path / "out" / "trajectories.parquet")
    assert str(bodies.field("body").type) == "large_binary"


def test_one_run_is_exported_without_bodies(history: Store, tmp_path: Path) -> None:
    wanted = ExportRequest(
        ["runs", "evaluation_episodes", "update_groups", "trajectories"], "fork-1"
    )
    assert export(history, tmp_path / "fork", wanted) == {
        "runs": 1,
        "evaluation_episodes": 0,
        "update_groups": 0,
        "trajectories": 0,
    }
    wanted = ExportRequest(["evaluation_episodes", "update_groups", "trajectories"], "story-1")
    assert export(history, tmp_path / "story", wanted) == {
        "evaluation_episodes": 1,
        "update_groups": 8,
        "trajectories": 14,
    }
    assert "body" not in pq.read_schema(tmp_path / "story" / "trajectories.parquet").names


class Between(list[str]):
    """Names of tables; the second time they are gone through, the first is followed by a change."""

    def __init__(self, names: list[str], store: Store) -> None:
        super().__init__(names)
        self.store, self.times = store, 0

    def __iter__(self) -> Iterator[str]:
        self.times += 1
        first, *others = super().__iter__()
        yield first
        if self.times == 2:
            with self.store.write() as session:
                session.execute(text("UPDATE runs SET version = 77"))
        yield from others


def test_all_tables_are_of_one_moment(told: Store, history: Store, tmp_path: Path) -> None:
    for number, store in enumerate((history, told)):
        names = Between(["groups", "runs"], told)
        with told.write() as session:
            session.execute(text("UPDATE runs SET version = 2"))
        export(store, tmp_path / str(number), ExportRequest(names))
        assert {row["version"] for row in _read(tmp_path / str(number), "runs")} == {2}
        with told.read() as session:
            assert set(session.scalars(select(Run.version))) == {77}


def test_a_folder_appears_whole_or_not_at_all(history: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(StoreError, match="no table episode; did you mean episodes"):
        export(history, out, ExportRequest(["episode"]))
    left = tmp_path / ".out.partial"
    left.mkdir()
    (left / "episodes.parquet").write_text("half of it")
    assert export(history, out, ExportRequest(["runs"])) == {"runs": 2}
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["out"]
    assert sorted(path.name for path in out.iterdir()) == ["export.json", "runs.parquet"]
    with pytest.raises(StoreError, match="out exists already"):
        export(history, out, ExportRequest(["runs"]))


def test_without_pyarrow_one_line_says_how_to_get_it(
    history: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StoreError, match="the export needs pyarrow") as refused:
        export(history, tmp_path / "out", ExportRequest(["runs"]))
    assert "parquet" in refused.value.hint
    assert not (tmp_path / "out").exists()


def test_memory_does_not_grow_with_the_bodies(store: Store, tmp_path: Path) -> None:
    """240 MiB of bodies pass through a process that grows by far less."""
    add = text(
        "INSERT INTO trajectories (episode_id, fence, run_id, sha256, body, received_at)"
        " VALUES (:e, 1, 'r', '', :body, 0)"
    )
    for number in range(30):
        body = os.urandom(2**20)
        with store.write() as session:
            rows = [{"e": f"{number}-{each}", "body": body} for each in range(8)]
            session.execute(add, rows)
    url = store.engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-c", PEAK, url, str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows_written, grown_mib = map(int, done.stdout.split())
    assert rows_written == 240
    assert grown_mib < 190, grown_mib
