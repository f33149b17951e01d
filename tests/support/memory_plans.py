"""Memory plans of a model's directory, for a machine with one card."""

from pathlib import Path

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.ops.configuration import model_spec
from agentrl.ops.doctor import memory
from agentrl.ops.doctor.machine import Machine
from agentrl.ops.doctor.memory import Plan
from agentrl.ops.doctor.memory_items import GIB

CARD = {"cuda:0": 24 * GIB}


def config(model: Path, more: str = "") -> Config:
    first = f'run.home = "{model.parent}/run"\ntasks.dbbench = {{}}\nmodel.path = "{model}"\n'
    return config_loading.loads(first + more)


def plan_memory(
    chosen: Config, cards: dict[str, int] | None = None, host: int = 64 * GIB
) -> list[Plan]:
    found = model_spec.read_spec(Path(chosen.model.path))
    return memory.memory_plans(chosen, found, Machine(host, CARD if cards is None else cards))


def sizes(plan: Plan, process: str) -> dict[str, int]:
    return {part.what: part.size for part in plan.parts if part.process == process}
