"""Tasks of another package, found by an entry point as a user's own would be."""

import sys
from pathlib import Path

import pytest


def add_task(folder: Path, patch: pytest.MonkeyPatch, name: str, code: str) -> None:
    """Register the task `name` for this test only.

    `code`: its module, with a callable `source`.
    """
    package = folder / f"{name}-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[agentrl.tasks]\n{name} = {name}_task:source\n")
    (folder / f"{name}_task.py").write_text(code)
    module = f"{name}_task"
    patch.setitem(sys.modules, module, None)  # so that the end of the test forgets it
    del sys.modules[module]
    patch.syspath_prepend(folder)
