"""A server of each kind."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from openenv_servers import SERVER, Sources


@pytest.fixture(scope="package")
def sources(openenv_python: Path) -> Iterator[Sources]:
    """A server of each kind, all in one process."""
    argv = [str(openenv_python), "-c", SERVER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())
            yield {kind: f"openenv:http://127.0.0.1:{port}" for kind, port in ports.items()}
        finally:
            process.terminate()
