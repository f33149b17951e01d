"""Tasks by name: the built-in ones and those of the entry point group `agentrl.tasks`.

An entry point is a callable that takes the task's options and returns its TaskSource. If it has the
name of a built-in task, it is ignored with a warning.

`ADAPTER:ARGUMENT` names other people's environments. An adapter is a callable that takes the task's
name, the argument and the task's options. It imports its package when it is called.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast, get_args, get_type_hints

from agentrl.core.errors import AgentRLError, ItemError, nearest, with_origin
from agentrl.core.logging import configure_unless_done, get_logger
from agentrl.envs.contract import TaskSource
from agentrl.envs.tasks.datasets import Dataset
from agentrl.envs.tasks.options import Generated

GROUP = "agentrl.tasks"
HINT = "run `pip install 'agentrl-system[tasks]'`"
TASKS = {
    "alfworld": "agentrl.envs.tasks.alfworld.task_source:AlfworldSource",
    "dbbench": "agentrl.envs.tasks.dbbench.task_source:DbbenchSource",
    "webshop": "agentrl.envs.tasks.webshop.task_source:WebshopSource",
    "kg": "agentrl.envs.tasks.kg.task_source:KgSource",
    "os": "agentrl.envs.tasks.oslinux.task_source:OsSource",
    "bfcl": "agentrl.envs.tasks.bfcl.task_source:BfclSource",
    "maths": "agentrl.envs.tasks.maths.task_source:MathsSource",
}
OF_USERS = {  # their items are a user's own: no generator, no expert, nothing to hold them to
    "gateway": "agentrl.envs.gateway.task_source:GatewaySource",
}
NEEDED_OPTIONS = {"gateway": ("program", "items", "reward")}
ADAPTERS = {  # each is also the name of its package's extra; harbor and verifiers need none
    "gymnasium": "agentrl.envs.adapters.gymnasium.task_source:GymnasiumSource",
    "harbor": "agentrl.envs.adapters.harbor.task_source:HarborSource",
    "mcp": "agentrl.envs.adapters.mcp.task_source:McpSource",
    "openenv": "agentrl.envs.adapters.openenv.task_source:OpenEnvSource",
    "reasoning-gym": "agentrl.envs.adapters.reasoning_gym.task_source:ReasoningGymSource",
    "textarena": "agentrl.envs.adapters.textarena.task_source:TextArenaSource",
    "verifiers": "agentrl.envs.adapters.verifiers.task_source:VerifiersSource",
}

log = get_logger()


def source(task: str, options: Mapping[str, Any], adapted: str = "") -> TaskSource:
    """Open a task's source. `adapted`: ADAPTER:ARGUMENT, not needed if the task has such a name.

    Raises ItemError that suggests the most similar task, option or adapter.
    """
    if adapted or ":" in task:
        return _adapt(task, options, adapted or task)
    ours = TASKS | OF_USERS
    if task in ours:
        _warn_of_namesakes(task)
        return cast(TaskSource, _load(ours[task])(options))
    return _outside(task, options)


def names() -> tuple[str, ...]:
    """Return all known tasks."""
    return tuple(sorted({*TASKS, *OF_USERS, *(entry.name for entry in entry_points(group=GROUP))}))


def datasets(task: str) -> tuple[Dataset, ...]:
    """Return a task's datasets: `DATASETS` of its module `datasets`. Raises ItemError."""
    found: tuple[Dataset, ...] = getattr(beside(task, "datasets"), "DATASETS", ())
    return found


def origins(task: str) -> tuple[str, ...]:
    """Return what a task's option `origin` takes; `generated` of a task without it."""
    for kind in vars(import_module(place(task))).values():
        has_options = isinstance(kind, type) and issubclass(kind, Generated)
        if has_options and (origin := get_type_hints(kind).get("origin")):
            return get_args(origin)
    return ("generated",)


def beside(task: str, name: str) -> ModuleType | None:
    """Import the module `name` in the package of a task's source; None: there is none.

    For a source outside a package return its own module. Raises ItemError.
    """
    package, _, last = place(task).rpartition(".")
    try:
        if not package:
            return import_module(last)
        return import_module(f"{package}.{name}") if find_spec(f"{package}.{name}") else None
    except ImportError as error:
        raise ItemError(f"task {task}: {name}: {error}", hint=HINT) from error


def place(task: str) -> str:
    """Return the module of a task's source. Raises ItemError."""
    found = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    found |= TASKS | OF_USERS
    if ":" in task:
        return ADAPTERS[_adapter(task, task)].partition(":")[0]
    if task not in found:
        raise ItemError(f"unknown task {task}{nearest(task, names())}")
    return found[task].partition(":")[0]


def _adapt(task: str, options: Mapping[str, Any], adapted: str) -> TaskSource:
    adapter = _adapter(task, adapted)
    if task in TASKS | OF_USERS:
        text = f"{task}: a built-in task cannot have the source {adapted}"
        raise ItemError(text, hint=f"rename [tasks.{task}]")
    try:
        make = cast(Callable[[str, str, Mapping[str, Any]], TaskSource], _load(ADAPTERS[adapter]))
        return make(task, adapted.partition(":")[2], options)
    except ImportError as error:
        hint = f"pip install 'agentrl-system[{adapter}]'"
        raise ItemError(f"{_where(task, adapted)}: {error}", hint=hint) from error


def _adapter(task: str, adapted: str) -> str:
    """The adapter's name. Raises ItemError."""
    adapter, colon, argument = adapted.partition(":")
    if adapter not in ADAPTERS:
        text = f"{_where(task, adapted)}: unknown adapter {adapter}{nearest(adapter, ADAPTERS)}"
        raise ItemError(text, hint="write ADAPTER:ARGUMENT, such as reasoning-gym:chain_sum")
    if not colon or not argument:
        text = f"{_where(task, adapted)}: nothing follows the adapter's name"
        raise ItemError(text, hint=f"{adapter}:ARGUMENT")
    return adapter


def _where(task: str, adapted: str) -> str:
    """Name a task and its source in an error, once where they are the same."""
    return task if task == adapted else f"{task}: source {adapted}"


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@cache
def _warn_of_namesakes(task: str) -> None:
    """Warn about duplicate task names, once per process."""
    for entry in entry_points(group=GROUP, name=task):
        configure_unless_done()
        log.warning(
            "Entry point ignored: its name belongs to a built-in task",
            task=task,
            ignored=entry.value,
        )


def _outside(task: str, options: Mapping[str, Any]) -> TaskSource:
    for entry in entry_points(group=GROUP, name=task):
        try:
            return cast(TaskSource, entry.load()(options))
        except AgentRLError:
            raise
        except Exception as error:  # whatever a user's module does
            text = f"task {task}: {entry.value}: {with_origin(error)}"
            raise ItemError(text) from error
    raise ItemError(f"unknown task {task}{nearest(task, names())}")
