import json
from pathlib import Path

from run_history import begun

from agentrl.dashboard.viewmodels import logs
from agentrl.dashboard.viewmodels.logs import log_files, log_rows, read_end


def line(event: str, level: str = "info", run: str = "run", **fields: object) -> str:
    time = "2026-11-23T09:10:11.123456Z"
    known = {"event": event, "level": level, "timestamp": time, "run": run, "process": "trainer"}
    return json.dumps(known | fields)


LINES = [
    line("Trainer started", version=0),
    line("Trainer started", run="another"),
    line("Alarm raised", "warning", alarm="entropy", task="kg"),
    "Traceback (most recent call last):",
    "",
]


def test_the_newest_line_of_the_run_comes_first_with_its_fields() -> None:
    rows = log_rows(LINES, "run", severe=False)
    assert [row["event"] for row in rows] == [
        "Traceback (most recent call last):",
        "Alarm raised",
        "Trainer started",
    ]
    assert rows[1] == {
        "time, UTC": "2026-11-23 09:10:11",
        "level": "warning",
        "event": "Alarm raised",
        "fields": "alarm=entropy task=kg",
    }


def test_lines_are_chosen_by_level_and_by_text() -> None:
    assert [row["event"] for row in log_rows(LINES, "run", severe=True)] == ["Alarm raised"]
    assert [row["event"] for row in log_rows(LINES, "run", severe=False, words="VERSION")] == [
        "Trainer started"
    ]
    assert len(log_rows([line("again")] * 2 * logs.LINES, "run", severe=False)) == logs.LINES


def test_only_whole_lines_of_the_end_of_a_large_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_text("first\n" + "x" * 99 + "\n" + ("y" * 1023 + "\n") * (logs.MAX_BYTES >> 10))
    assert set(read_end(path)) == {"y" * 1023}
    path.write_text("first\nlast\n")
    assert read_end(path) == ["first", "last"]
    assert read_end(tmp_path / "none.log") == []


def test_log_files_are_found_beside_the_store(url: str, tmp_path: Path) -> None:
    store, run_id = begun(url)
    assert log_files(store, run_id) == []
    (tmp_path / "logs").mkdir()
    for name in ("worker-0.log", "trainer.log", "trainer.log.1", "notes.txt"):
        (tmp_path / "logs" / name).write_text("")
    assert [path.name for path in log_files(store, run_id)] == [
        "trainer.log",
        "trainer.log.1",
        "worker-0.log",
    ]
    store.close()
