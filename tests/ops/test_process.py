"""The exit codes of a process: what a supervisor tries again, and what a person has to mend."""

import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from running import ROOT

from core import loading
from core.config import Config, Model, Run, Task
from ops.runs import begin


@pytest.mark.parametrize(("supervised", "code"), [(True, 1), (False, 2)])
def test_a_store_that_is_away_is_tried_again_where_somebody_supervises(
    tmp_path: Path, supervised: bool, code: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    file = tmp_path / "run.toml"
    file.write_text(
        f'[tasks.dbbench]\n[store]\nurl = "postgresql+psycopg://u@127.0.0.1:{port}/x"\n'
        f'[run]\nhome = "{tmp_path / "home"}"\n[model]\npath = "{ROOT / "models" / "tiny"}"\n'
    )
    ended = subprocess.run(
        [sys.executable, "-m", "cli.main", "recorder", str(file)]
        + (["--supervised"] if supervised else []),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code
    (line,) = ended.stderr.splitlines()
    assert line.startswith("agentrl: store postgresql+psycopg://u@127.0.0.1")
    assert "is unreachable" in line


@pytest.mark.slow
@pytest.mark.parametrize("role", ["dispatcher", "trainer", "evaluator"])
def test_who_ends_with_the_run_ends_well_where_it_was_over_before(
    tmp_path: Path, role: str
) -> None:
    model = Model(path=str(ROOT / "models" / "tiny"))
    config = Config(tasks={"dbbench": Task()}, run=Run(home=str(tmp_path)), model=model)
    begin(config)
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("UPDATE runs SET state = 'completed', reason = 'enough'")
    file = tmp_path / "run.toml"
    file.write_text(loading.to_toml(config))
    command = [sys.executable, "-m", "cli.main", role, str(file)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"{role}: run run is over (completed: enough)")
