"""Task folders as a task: an item is a folder, an episode a container of the folder's own image.

harbor:DIR ─▶ folders ─▶ an image each, built by its first episode ─▶ a shell ─▶ tests ─▶ reward
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from agentrl.core.errors import ConfigError, ItemError
from agentrl.envs.adapters.harbor import folder, settings
from agentrl.envs.adapters.harbor.environment import MIB, HarborEnvironment, HarborOptions, Rules
from agentrl.envs.adapters.harbor.expert import SolutionExpert, solution_script
from agentrl.envs.adapters.harbor.folder import SOLVE, TaskError, TaskFolder
from agentrl.envs.contract import Environment, Expert, Item, require_split
from agentrl.envs.sandbox.program import OS, ImageBuild, SandboxLimits
from agentrl.envs.sandbox.sandbox import Sandboxes, Spec
from agentrl.envs.tasks import options
from agentrl.envs.tasks.oslinux.machine import Machine, program


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item's content. `digest`: of the folder's files."""

    folder: str
    digest: str


class HarborSource:
    """The task folders below one folder, which is read when its items are asked for."""

    def __init__(self, task: str, argument: str, raw_options: Mapping[str, Any]) -> None:
        """Raises ItemError for an option that is not understood."""
        self.name, self._root = task, Path(argument)
        self._options = options.parse(task, HarborOptions, raw_options)
        self.max_turns: int = self._options.max_turns
        self._loaded: Mapping[str, TaskFolder] | None = None
        self._pools: Mapping[str, Sandboxes] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self._options.splits)

    def items(self, split: str) -> Sequence[Item]:
        """Raises ItemError, also for a folder that is broken."""
        require_split(self.name, split, self._options.splits)
        patterns = self._options.splits[split]
        return tuple(
            Item(self.name, name, {"folder": name, "digest": task.digest})
            for name, task in self._tasks().items()
            if _matches(name, patterns)
        )

    def make(self, item: Item) -> Environment:
        """Raises ItemError, ConfigError without containers."""
        task = self._task(item)
        if not self._pools:
            raise ConfigError(
                f"{self.name} runs in containers, which need an env server",
                hint="set envs.url to an env server",
            )
        pool = self._pools[task.name]
        rules = Rules(
            self._options,
            self._network(task),
            env=self._filled(task, "environment"),
            tests_env=self._filled(task, "verifier"),
        )
        lease = partial(Machine, pool, self.name)
        return HarborEnvironment(task, rules, lease, pool.image_settings)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        """Raises ItemError for a task without a solution."""
        task = self._task(item)
        if not (task.path / SOLVE).is_file():
            raise ItemError(f"item {item.item_id}: the task has no {SOLVE}")
        script = solution_script(task, self._filled(task, "solution"))
        return SolutionExpert(script, seed=seed, noise=noise)

    def specs(self, image: str) -> Sequence[Spec]:  # noqa: ARG002
        """Return one Spec for each task; a container is used once, because its agent is root."""
        return [self._spec(task) for task in self._tasks().values()]

    def contain(self, pools: Mapping[str, Sandboxes]) -> None:
        self._pools = pools

    def _spec(self, task: TaskFolder) -> Spec:
        environment = task.settings.environment
        image = "" if self._options.build else environment.docker_image
        return Spec(
            image=image or task.image(),
            program=program(),
            limits=self._limits(task),
            reuse=1,
            spares=0,
            name=task.name,
            build=ImageBuild(None if image else task.context, environment.build_timeout_sec),
        )

    def _limits(self, task: TaskFolder) -> SandboxLimits:
        request, most = task.settings.environment, self._options
        return replace(
            OS,
            memory_bytes=min(request.memory_mb or most.memory_mb, most.memory_mb) * MIB,
            cpus=min(request.cpus or most.cpus, most.cpus),
            disk_bytes=min(request.storage_mb or most.storage_mb, most.storage_mb) * MIB,
            network="bridge" if self._network(task)[0] else "none",
        )

    def _network(self, task: TaskFolder) -> tuple[bool, bool]:
        """Return whether agent and tests have a network.

        Raises TaskError for a task that says it needs one and may not have it.
        """
        task_settings = task.settings
        requests = [
            settings.network(task_settings, phase)
            for phase in (task_settings.agent, task_settings.verifier)
        ]
        if True in requests and not self._options.network:
            raise TaskError(
                f"harbor task {task.path}: it asks for a network, and the option network is false",
                hint=f"set tasks.{self.name}.options.network = true",
            )
        agent, tests = (self._options.network if each is None else each for each in requests)
        return agent, tests

    def _filled(self, task: TaskFolder, section: str) -> dict[str, str]:
        """Return a section's variables. Raises TaskError, ConfigError."""
        variables: Mapping[str, str] = getattr(task.settings, section).env
        known = options.fill_env(self.name, "env", self._options.env)
        try:
            return settings.fill(variables, known)
        except KeyError as error:
            name = error.args[0]
            text = f"harbor task {task.path}: {section}.env needs ${{{name}}}"
            hint = f"set tasks.{self.name}.options.env.{name}; tasks do not read the environment"
            raise TaskError(text, hint=hint) from error

    def _task(self, item: Item) -> TaskFolder:
        """Raises ItemError."""
        place = options.read(item, Place)
        task = self._tasks().get(place.folder)
        if task is None:
            raise ItemError(f"item {item.item_id}: no task folder {self._root / place.folder}")
        if task.digest != place.digest:
            raise ItemError(
                f"item {item.item_id}: {task.path} has other files than when the item was made",
                hint="give every machine the same folder, and start anew after a change",
            )
        return task

    def _tasks(self) -> Mapping[str, TaskFolder]:
        """Return the tasks by name, read once. Raises ItemError that names all broken ones."""
        if self._loaded is not None:
            return self._loaded
        tasks: dict[str, TaskFolder] = {}
        broken: dict[str, TaskError] = {}
        for name, path in folder.find(self._root).items():
            if _matches(name, self._options.exclude):
                continue
            try:
                tasks[name] = folder.load(name, path, build=self._options.build)
                self._network(tasks[name])
            except TaskError as error:
                broken[name] = error
        if broken:
            first, *others = broken.values()
            more = f" (and {len(others)} more: {', '.join([*broken][1:])})" if others else ""
            leave_out = (
                f"leave out with options.exclude = {msgspec.json.encode([*broken]).decode()}"
            )
            hint = f"{first.hint}, or {leave_out}" if first.hint else leave_out
            raise ItemError(f"{self.name}: {first}{more}", hint=hint)
        self._loaded = tasks
        return tasks


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
