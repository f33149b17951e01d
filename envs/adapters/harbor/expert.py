"""The demonstrator: writes the task's own solution into the machine, and runs it."""

import base64
from collections.abc import Mapping, Sequence
from random import Random
from shlex import quote

from agentrl.envs.adapters.harbor.folder import SOLVE, TaskFolder, files
from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.oslinux.environment import BASH, FINISH

END = "SOLUTION"  # of a file's text in the script


class SolutionExpert:
    """An Expert; `noise`: the probability that it finishes without the solution."""

    def __init__(self, script: str, *, seed: int, noise: float) -> None:
        gives_up = Random(seed).random() < noise
        self._turns = [] if gives_up else [ToolCall(BASH, {"script": script})]

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        return self._turns.pop() if self._turns else ToolCall(FINISH, {"thought": "done"})


def solution_script(task: TaskFolder, env: Mapping[str, str]) -> str:
    """Return code that does what Harbor's oracle does. `env`: variables of the solution."""
    root = task.path / SOLVE.partition("/")[0]
    lines = [
        _written(f"/solution/{each.relative_to(root)}", each.read_bytes()) for each in files(root)
    ]
    variables = {"DEBIAN_FRONTEND": "noninteractive", **env}
    given = " ".join(f"{name}={quote(value)}" for name, value in variables.items())
    lines.append(f"chmod +x /{SOLVE} && {given} /{SOLVE}")
    return "\n".join(["mkdir -p /solution", *lines])


def _written(path: str, content: bytes) -> str:
    """Return code that writes a file: readable where it is text."""
    folder = f"mkdir -p {quote(path.rpartition('/')[0])}; "
    folder = "" if path.count("/") == 2 else folder
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or not text.endswith("\n") or END in text.split("\n"):
        encoded = base64.b64encode(content).decode()
        return f"{folder}base64 -d > {quote(path)} <<< {encoded}"
    return f"{folder}cat > {quote(path)} <<'{END}'\n{text}{END}"
