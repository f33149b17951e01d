"""Chooses the groups of a study by seed and position only, so that all arms get the same."""

from collections.abc import Mapping

from agentrl.core.config.config import Config
from agentrl.envs.contract import TaskSource
from agentrl.experiments.simulation.simulator import Job
from agentrl.workers.dispatch.curriculum import (
    carry_debts,
    next_task,
    shares,
    turn_limit,
)
from agentrl.workers.dispatch.item_stream import ItemStream


class Admission:
    """The item streams of all tasks, mixed by weight like in the dispatcher."""

    def __init__(self, config: Config, sources: Mapping[str, TaskSource], seed: int) -> None:
        self._size = config.dispatch.group_size
        self._seed = seed
        self._shares = shares({task: config.tasks[task].weight for task in sources}, {}, 0.0)
        self._streams = {
            task: ItemStream(source.items(config.tasks[task].split), seed)
            for task, source in sources.items()
        }
        self._horizons = {task: config.tasks[task].horizons for task in sources}
        self._admitted = dict.fromkeys(sources, 0)

    def group(self, version: int) -> list[Job]:
        """Return the episodes of the next group, whose horizon is that of the version."""
        task = next_task(self._shares, carry_debts(self._shares, {}, self._admitted))
        position = self._admitted[task]
        self._admitted[task] += 1
        item = self._streams[task].at(position)
        horizon = turn_limit(self._horizons[task], version)
        name = f"{task}-{position}"
        return [
            Job(item, name, member, f"{self._seed}/{task}/{position}/{member}", horizon)
            for member in range(self._size)
        ]
