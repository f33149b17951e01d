import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from world import World

import broker
from broker.api import Broker
from broker.messages import EpisodeFinished, decode
from broker.topology import TRAJECTORIES, recorder_queue
from core.errors import StoreError
from db.store import Store
from workers.recorder import record


@pytest.fixture
def world(store: Store) -> World:
    return World.begin(store)


@pytest.fixture
def link(world: World, tmp_path: Path) -> Iterator[Broker]:
    with closing(broker.connect(f"sqlite:///{tmp_path / 'queue.db'}")) as opened:
        opened.declare_run(world.run_id)
        yield opened


def _record(world: World, link: Broker) -> None:
    with closing(link.consumer(recorder_queue(world.run_id))) as consumer:
        record(world.store, consumer, threading.Event(), drain=True)


def test_bodies_and_steps_are_stored_and_then_acknowledged(world: World, link: Broker) -> None:
    bodies = world.ready(0, stored=False)
    for body in [*bodies, *bodies]:
        link.publisher().publish(TRAJECTORIES, world.run_id, EpisodeFinished(trajectory=body))
    _record(world, link)
    assert world.ask("SELECT COUNT(*) FROM trajectories") == [(4,)]
    assert world.ask("SELECT COUNT(*) FROM steps") == [(8,)]
    assert link.depths(world.run_id)[recorder_queue(world.run_id)] == 0
    assert world.accounting() == []
    (first,) = world.ask("SELECT track, version, token_start FROM steps ORDER BY track LIMIT 1")
    assert first == ("current", 0, 5)


def test_a_text_with_nul_and_any_unicode_is_stored(world: World, link: Broker) -> None:
    body = world.ready(0, stored=False)[0]
    text = "a\0b \N{GRINNING FACE} \\N \t\n\x01"
    steps = tuple(msgspec.structs.replace(step, call=text, answer=text) for step in body.steps)
    odd = msgspec.structs.replace(body, steps=steps)
    link.publisher().publish(TRAJECTORIES, world.run_id, EpisodeFinished(trajectory=odd))
    _record(world, link)
    readable = text.replace("\0", "\N{SYMBOL FOR NULL}")
    assert world.ask("SELECT DISTINCT call, answer FROM steps") == [(readable, readable)]
    ((stored,),) = world.ask("SELECT body FROM trajectories")
    assert decode(bytes(stored)) == EpisodeFinished(trajectory=odd)


def test_replaced_policies_and_spans_that_broke_off_can_be_asked_for(
    world: World, link: Broker
) -> None:
    body = world.ready(0, stored=False)[0]
    broken = msgspec.structs.replace(body.steps[0], finish_reason="abort", redrawn=2)
    told = msgspec.structs.replace(body, steps=(broken, body.steps[1]))
    link.publisher().publish(TRAJECTORIES, world.run_id, EpisodeFinished(trajectory=told))
    _record(world, link)
    found = world.ask("SELECT finish_reason, redrawn FROM steps ORDER BY number")
    assert found == [("abort", 2), ("stop", 0)]


def test_what_could_not_be_stored_comes_again(world: World, link: Broker) -> None:
    for body in world.ready(0, stored=False):
        link.publisher().publish(TRAJECTORIES, world.run_id, EpisodeFinished(trajectory=body))

    class Away:
        def clock(self) -> float:
            raise StoreError("the store is away")

    queue = recorder_queue(world.run_id)
    with pytest.raises(StoreError), closing(link.consumer(queue)) as consumer:
        record(Away(), consumer, threading.Event())  # type: ignore[arg-type]
    _record(world, link)
    assert world.ask("SELECT COUNT(*) FROM trajectories") == [(4,)]
