"""Estimates whether a run fits into memory before any process starts.

    model directory ─▶ ModelSpec ─▶ items (trainer_memory.py, policy_memory.py)
                    ─▶ a Plan for each card, one for the machine ─▶ fits, or the keys to change

Items are peaks, or upper bounds if they depend on the data. Tasks and the database are not
included.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.ops.configuration.model_spec import ModelSpec, read_spec
from agentrl.ops.doctor.deepspeed_memory import over_ranks
from agentrl.ops.doctor.machine import Machine, this_machine
from agentrl.ops.doctor.memory_items import (
    HOST,
    MIB,
    PLAIN,
    SHARE,
    MemoryItem,
    gpu_share,
    size_text,
    vllm_devices,
)
from agentrl.ops.doctor.policy_memory import least_of_vllm, local_items, vllm_items
from agentrl.ops.doctor.trainer_memory import trainer_items

TRAINER = "trainer"
WORKER = 160 * MIB


@dataclass(frozen=True, slots=True)
class Plan:
    """The use of one memory. `room`: its bytes; None: unknown.

    `refusals`: problems independent of the total. `free`: bytes that no process uses now; None:
    unknown.
    """

    device: str
    room: int | None
    parts: Sequence[MemoryItem]
    refusals: Sequence[str] = ()
    free: int | None = None

    @property
    def total(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def fits(self) -> bool:
        return not self.refusals and (self.room is None or self.total <= self.room)

    @property
    def is_crowded(self) -> bool:
        """Return whether it fits only once other processes have ended."""
        return self.fits and self.free is not None and self.total > self.free

    def words(self) -> str:
        """Describe total and available memory."""
        needs = f"{self.device} needs {size_text(self.total)}"
        if self.room is None:
            return f"{needs}; its memory is unknown, because this machine has no {self.device}"
        free = [f"only {size_text(self.free or 0)} are free now"] if self.is_crowded else []
        return "; ".join([f"{needs} of {size_text(self.room)}", *free, *self.refusals])

    def hint(self) -> str:
        """Return a hint with the keys of the largest parts; empty if it fits."""
        if self.is_crowded:
            return "if other programs use it, end them"
        if self.fits:
            return ""
        if self.refusals:
            return f"raise {SHARE} in policy.vllm.args, or lower policy.vllm.context"
        largest = sorted(self.parts, key=lambda part: -part.size)
        keys = list(dict.fromkeys(part.lower for part in largest if part.lower and part.size))
        return f"change {', or '.join(keys[:3])}" if keys else "choose a smaller model"

    def processes(self) -> dict[str, str]:
        """Describe the memory of each process, largest part first."""
        names = dict.fromkeys(part.process for part in self.parts)
        return {name: self._words_of(name) for name in names}

    def _words_of(self, process: str) -> str:
        own = sorted((p for p in self.parts if p.process == process), key=lambda p: -p.size)
        listed = ", ".join(f"{part.what} {size_text(part.size)}" for part in own if part.size)
        return f"{size_text(sum(part.size for part in own))}: {listed}"


def require_memory(config: Config) -> list[Plan]:
    """Return the plans of a run; none for an unknown model. Raises ConfigError if it does not fit.

    Unknown memory is not refused.
    """
    try:
        shape = read_spec(Path(config.model.path))
    except ConfigError:
        return []
    plans = memory_plans(config, shape, this_machine())
    for plan in plans:
        if not plan.fits:
            raise ConfigError(f"memory: {plan.words()}", hint=plan.hint())
    return plans


def memory_plans(config: Config, shape: ModelSpec, machine: Machine) -> list[Plan]:
    """Return a plan for each used GPU, then one for the machine. Raises ConfigError."""
    placed: dict[str, list[MemoryItem]] = {}
    every = list(memory_items(config, shape, machine))
    trainer = [part for part in every if part.process == TRAINER]
    for part in (*over_ranks(config, trainer), *(p for p in every if p.process != TRAINER)):
        placed.setdefault(part.device, []).append(part)
    rooms = {**machine.cards, HOST: machine.memory}
    refused = refusals(config, shape, machine)
    return [
        Plan(
            device,
            rooms.get(device),
            placed[device],
            refused.get(device, ()),
            machine.free.get(device),
        )
        for device in sorted(placed, key=lambda device: (device == HOST, device))
    ]


def memory_items(config: Config, shape: ModelSpec, machine: Machine) -> Iterator[MemoryItem]:
    """Yield the items of every process. Raises ConfigError."""
    yield from trainer_items(config, shape)
    for server in config.policy_servers():
        if server.engine == "vllm":
            yield from vllm_items(config, server, shape, machine)
        elif server.engine == "local":
            yield from local_items(config, server, shape)
    if config.eval.every:
        own, server = config.as_evaluated(), config.eval_server()
        if server.engine == "vllm":
            yield from vllm_items(own, server, shape, machine)
        else:
            yield from local_items(own, server, shape)
    for n in range(config.workers):
        yield MemoryItem(HOST, f"worker-{n}", "process", WORKER, "workers")
    yield MemoryItem(HOST, "the rest", "dispatcher, recorder, supervisor", 3 * PLAIN)


def refusals(config: Config, shape: ModelSpec, machine: Machine) -> dict[str, list[str]]:
    """Return GPU shares that are too small for their vLLM."""
    found: dict[str, list[str]] = {}
    cards = machine.cards
    for server in config.engine_servers():
        if server.engine != "vllm":
            continue
        least, share = least_of_vllm(config, server, shape), gpu_share(server)
        for device in vllm_devices(config, server, machine.names):
            if device in cards and least > share * cards[device]:
                found.setdefault(device, []).append(
                    f"policy {server.name}: vLLM needs {size_text(least)}, but its share is "
                    f"{size_text(int(share * cards[device]))}"
                )
    return found
