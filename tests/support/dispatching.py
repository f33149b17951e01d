"""A dispatcher over a store's rows, and the end of the groups that it admitted."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from run_transitions import World

from agentrl.broker.messages import RunEpisode
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.config.sections.tasks import Task
from agentrl.envs.contract import Item
from agentrl.ops.processes.dispatcher import dispatcher_config
from agentrl.workers.dispatch.dispatcher import Dispatcher
from agentrl.workers.dispatch.item_stream import ItemStream

PLAN = Dispatch(groups_per_update=2, group_size=2, max_staleness=1, lease_s=60.0)
BOUND = 4


def make_dispatcher(
    world: World,
    items: int = 6,
    weights: dict[str, float] | None = None,
    horizons: Sequence[tuple[int, int]] = (),
    clock: Callable[[], float] = time.monotonic,
    **plan: Any,
) -> Dispatcher:
    weights = weights or {"a": 1.0}
    config = Config(
        tasks={n: Task(weight=weight, horizons=list(horizons)) for n, weight in weights.items()},
        dispatch=msgspec.structs.replace(PLAN, **plan),
    )
    streams = {
        name: ItemStream([Item(name, f"{name}{n}", {}) for n in range(items)], 0)
        for name in weights
    }
    return Dispatcher(dispatcher_config(config), world.run_id, world.store, streams, clock=clock)


def tick(dispatcher: Dispatcher) -> list[RunEpisode]:
    sent: list[RunEpisode] = []
    dispatcher.tick(sent.append)
    return sent


def close(world: World, state: str = "filtered") -> None:
    """Close all open groups, as the trainer might."""
    world.sql("UPDATE episodes SET state = 'finished', score = 1.0 WHERE state = 'queued'")
    closed = f"state = '{state}', pending = 0, closed_at = admitted_at"
    world.sql(f"UPDATE groups SET {closed} WHERE state = 'open'")  # noqa: S608


def positions(world: World, task: str = "a") -> list[int]:
    rows = world.ask("SELECT position FROM groups WHERE task = :t ORDER BY position", t=task)
    return [position for (position,) in rows]


def stopped_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event
