"""Environments of verifiers: its own rollout is an agent program of ours, one for each episode.

runner.py, in the Python that has verifiers ─▶ the episode's chat endpoint (envs/gateway)
its last line ─▶ reward, metrics
"""

import dataclasses
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.envs.contract import Environment, Expert, Item, Outcome, ToolCall, require_split
from agentrl.envs.gateway.environment import Gateway, Plan
from agentrl.envs.gateway.process import INHERITED, confine_command
from agentrl.envs.gateway.reward import Result
from agentrl.envs.tasks import options
from agentrl.envs.tasks.generated import SPLITS, split_of

RUNNER = str(Path(__file__).with_name("runner.py"))
SHOWN = 300  # characters of the runner's last words


class VerifiersOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options. `python`: the Python that has verifiers and the package. `config`: verifiers' own
    configuration of an environment (its `[env]`). `env`: variables of its process, `${NAME}` from
    ours. `solved`: the reward from which the score is 1; the score is the reward where absent.
    `items`: how many of the first tasks are taken, for `train` and `test` together. `timeout_s`: of
    one turn. `list_s`: of the list of tasks.
    """

    python: str = "python3"
    config: dict[str, Any] = {}
    env: dict[str, str] = {}
    solved: float | None = None
    items: options.Count = 1000
    max_turns: options.Count = 30
    timeout_s: Annotated[float, Meta(gt=0.0)] = 120.0
    list_s: Annotated[float, Meta(gt=0.0)] = 600.0
    own_user: bool = True


class ListedTask(msgspec.Struct, frozen=True):
    """A line of the runner's list."""

    index: int
    hash: str


class RunnerResult(msgspec.Struct, frozen=True):
    """The runner's last line. `metrics`: also the parts of the reward."""

    reward: float
    metrics: dict[str, float]


class VerifiersEnvironment(Gateway):
    """One episode of a program whose last line has the metrics, too."""

    def __init__(self, item: Mapping[str, Any], plan: Plan, solved: float | None) -> None:
        super().__init__(item, dataclasses.replace(plan, reward=self._reward))
        self._solved = solved
        self._metrics: Mapping[str, float] = {}

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        outcome = super().call(calls)
        return dataclasses.replace(outcome, metrics=self._metrics) if outcome.done else outcome

    def _reward(self, _: Mapping[str, Any], result: Result) -> tuple[float, float]:
        found = msgspec.json.decode(result.last_line, type=RunnerResult)
        self._metrics = found.metrics
        score = found.reward if self._solved is None else float(found.reward >= self._solved)
        return found.reward, score


class VerifiersSource:
    """The tasks of one taskset; the hash of a task decides its split."""

    splits = SPLITS

    def __init__(self, task: str, argument: str, given: Mapping[str, Any]) -> None:
        """Raises ItemError for an option that is not understood, ConfigError."""
        self.name = task
        self._options = asked = options.parse(task, VerifiersOptions, given)
        self.max_turns: int = asked.max_turns
        self._env = _path_beside(asked.python) | options.fill_env(task, "env", asked.env)
        taskset = {"id": argument, **asked.config.get("taskset", {})}
        self._config = {**asked.config, "taskset": taskset}
        self._listed: list[ListedTask] | None = None

    def items(self, split: str) -> Sequence[Item]:
        """List the tasks, once. Raises ItemError."""
        require_split(self.name, split, SPLITS)
        if self._listed is None:
            self._listed = self._list()
        common = {"env": self._config, "max_turns": self.max_turns}
        return tuple(
            Item(self.name, each.hash[:24], {**common, **msgspec.to_builtins(each)})
            for each in {each.hash: each for each in self._listed}.values()
            if split_of(each.hash) == split
        )

    def make(self, item: Item) -> Environment:
        asked = self._options
        plan = Plan(
            program=(asked.python, RUNNER, "play"),
            env=self._env,
            timeout_s=asked.timeout_s,
            reward=_unset,
            own_user=asked.own_user,
        )
        return VerifiersEnvironment(item.content, plan, asked.solved)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:  # noqa: ARG002
        raise ItemError(f"item {item.item_id}: verifiers has no demonstrator of {self.name}")

    def _list(self) -> list[ListedTask]:
        """Raises ItemError."""
        asked = self._options
        where = f"{self.name}: verifiers:{self._config['taskset']['id']}"
        ours = {name: os.environ[name] for name in INHERITED if name in os.environ}
        try:
            ended = subprocess.run(
                confine_command([asked.python, RUNNER, "list"]),
                input=msgspec.json.encode({"env": self._config, "items": asked.items}),
                env=ours | self._env,
                capture_output=True,
                check=False,
                timeout=asked.list_s,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ItemError(f"{where}: {error}", hint="set the option python") from error
        if ended.returncode:
            last = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2][:SHOWN]
            hint = "install verifiers and the package, and set the option python to that Python"
            raise ItemError(f"{where}: {last}", hint=hint)
        try:
            lines = ended.stdout.splitlines()
            return [msgspec.json.decode(line, type=ListedTask) for line in lines]
        except msgspec.MsgspecError as error:
            raise ItemError(f"{where}: the list of its tasks: {error}") from error


def _path_beside(python: str) -> dict[str, str]:
    """PATH with the folder of this Python first, where its harnesses look for `uv`."""
    folder = str(Path(python).absolute().parent) if os.sep in python else ""
    return {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"} if folder else {}


def _unset(_: Mapping[str, Any], __: Any) -> float:
    raise EnvironmentFailure("the reward is the runner's")
