"""Plays experts' episodes in several processes, in the order and with the seeds of one.

numbers of episodes ─▶ parts ─▶ a process each, with its own task sources ─▶ transcripts, in order
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial

from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ItemError
from agentrl.envs.contract import TaskSource
from agentrl.envs.registry import source
from agentrl.ops.warmstart.demonstrations import Demonstrator, Transcript
from agentrl.workers.conversation.toolcalls import Style

PART = 20  # episodes that a process plays at a time
WORTH = 2000  # fewer are played sooner than processes start
PROCESSES = 32  # at most: each imports torch, 300 MB

_own: "Experts"  # of a process of the pool


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a phase. `noise`: probability of a fault per turn, by task.

    `worth`: episodes of all tasks from which on processes are started.
    """

    tasks: Mapping[str, Task]
    style: Style
    noise: Mapping[str, float]
    sources: dict[str, TaskSource] = field(default_factory=dict)
    worth: int = WORTH

    def episodes(
        self, count: int, seed: int, processes: int = 1
    ) -> Iterator[tuple[str, Transcript]]:
        """Yield task and transcript of `count` episodes of each task, task by task.

        With `processes` above 1 the module `__main__` must be importable without effect. Raises
        ItemError without an expert, and if a process was killed.
        """
        if processes == 1 or count * len(self.tasks) < self.worth:
            for name in self.tasks:
                yield from self._part(name, count, seed, range(count))
            return
        context = multiprocessing.get_context("spawn")
        tasks = (dict(self.tasks), self.style, dict(self.noise))
        parts = [range(start, min(start + PART, count)) for start in range(0, count, PART)]
        with ProcessPoolExecutor(min(processes, len(parts)), context, _begin, tasks) as pool:
            try:
                for name in self.tasks:
                    for part in pool.map(partial(_play, name, count, seed), parts):
                        yield from part
            except BrokenProcessPool as error:
                hint = "free memory or use fewer processors (taskset)"
                raise ItemError("a process that plays experts was killed", hint=hint) from error
            finally:
                pool.shutdown(cancel_futures=True)

    def _part(
        self, name: str, count: int, seed: int, numbers: range
    ) -> Iterator[tuple[str, Transcript]]:
        task = self.tasks[name]
        if name not in self.sources:
            self.sources[name] = source(name, task.options, task.source)
        expert = Demonstrator(self.sources[name], task, self.style, self.noise.get(name, 0.0))
        return ((name, played) for played in expert.part(numbers, seed * count))


def usable_processes() -> int:
    """Return the number of processes to start: one per usable processor, at most PROCESSES."""
    has_affinity = hasattr(os, "sched_getaffinity")  # on Linux
    processors = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(processors, PROCESSES)


def _begin(tasks: Mapping[str, Task], style: Style, noise: Mapping[str, float]) -> None:
    """Prepare a process of the pool, which ends with its parent."""
    global _own  # noqa: PLW0603 - the state of the process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _own = Experts(tasks, style, noise)


def _end_with_parent() -> None:
    """End this process once its parent has been killed; the pool alone would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - it was spawned
    parent.join()
    os._exit(1)


def _play(name: str, count: int, seed: int, numbers: range) -> list[tuple[str, Transcript]]:
    return list(_own._part(name, count, seed, numbers))  # noqa: SLF001 - ours
