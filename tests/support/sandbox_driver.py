"""The driver of a sandbox, as a process of this machine: it asks for no rights and no container."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class DriverProcess:
    """The `sandbox_main` of a folder of `envs/tasks/`, one line at a time."""

    def __init__(self, package: str, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"agentrl.envs.tasks.{package}.sandbox_main"],
            cwd=folder,
            env={"HOME": str(folder), "PYTHONPATH": os.environ["PYTHONPATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def end(self) -> int:
        """Close its input; return its exit status."""
        self.process.communicate(timeout=30)
        return self.process.returncode
