from pathlib import Path

from known_runs import write_known_runs

from agentrl.db.admin.sizes import sizes
from agentrl.db.store import Store


def test_rows_and_bytes_are_told_by_table_and_by_run(store: Store) -> None:
    write_known_runs(store)
    with store.read() as session:
        found = sizes(session)
    rows = {each.table: each.rows for each in found.tables}
    assert (rows["episodes"], rows["trajectories"], rows["updates"]) == (16, 14, 3)
    assert [each.bytes or 0 for each in found.tables] == sorted(
        (each.bytes or 0 for each in found.tables), reverse=True
    )
    story, fork = found.runs
    assert (story.run, story.state, story.groups, story.episodes) == ("story", "running", 8, 16)
    assert (story.bodies, story.body_bytes) == (14, 14 * len(b"body of g-a-0"))
    assert (fork.run, fork.groups, fork.body_bytes, fork.ended_s) == ("fork", 0, 0, None)
    assert story.age_s - fork.age_s == 50_000


def test_an_engine_tells_what_it_has_to_clean(store: Store) -> None:
    with store.read() as session:
        found = sizes(session)
    if store.engine.dialect.name == "postgresql":
        assert all(each.dead is not None and each.bytes for each in found.tables)
        assert int(found.engine["database_bytes"]) > 2**20
        return
    file = Path(store.engine.url.database or "")
    pages = int(found.engine["page_size"]) * int(found.engine["page_count"])
    assert pages <= file.stat().st_size + int(found.engine["wal_bytes"])
    assert found.engine["journal_mode"] == "wal"
    assert all(each.dead is None for each in found.tables)
