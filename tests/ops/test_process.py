"""The exit codes of a process: what a supervisor tries again, and what a person has to mend."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT


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
