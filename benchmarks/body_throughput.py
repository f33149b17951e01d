"""Trajectories through the broker beside a bare pika loop, and into Postgres beside a bare COPY.

    python benchmarks/body_throughput.py --broker AMQP --store URL [--tokens N …]

`broker`: megabytes of encoded trajectories a second, from `publish` (encode, zstd, confirm; eight
threads, as a worker's) to `receive` (decode, check) and `ack`, on the run's quorum queues. Bare:
the same trajectories' MessagePack, encoded before, through pika's BlockingConnection with confirms
into one quorum queue and out of it, prefetched, acknowledged by the hundred. `recorder`: bodies a
second of `workers/recorder.py keep_bodies`, beside COPY of the same rows, made before, into the
tables. `trainer`: milliseconds of its processor time for a body, from its queue and from the table.
Arms take turns; a ratio is that of a round's two arms. The store is emptied of the run afterwards.
"""

import argparse
import json
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pika
import psycopg
from helpers.random_models import make_trajectory
from sqlalchemy import text

from agentrl import broker
from agentrl.broker.api import Broker, Delivery
from agentrl.broker.messages import EpisodeFinished, encode
from agentrl.broker.queue_names import TRAJECTORIES, recorder_queue, trainer_queue
from agentrl.core.trajectory import Trajectory
from agentrl.core.trajectory_body import body_of
from agentrl.core.types import RunState
from agentrl.db.admin import migrate
from agentrl.db.models.runs import Run
from agentrl.db.store import Store, open_store
from agentrl.db.transitions import groups, lifecycle
from agentrl.db.transitions.groups import NewGroup
from agentrl.db.transitions.trajectories import bodies as stored_bodies
from agentrl.workers import recorder

TURNS, THREADS, BYTES = 20, 8, 48 * 1024 * 1024  # of a trajectory; publishing; of an arm
BULK, BATCH = 256, 64  # bodies of one transaction of the recorder; of a batch's groups


def trajectory(run_id: str, tokens: int, rng: np.random.Generator) -> Trajectory:
    """A finished episode of so many tokens, a quarter of them sampled, with texts of a tool."""
    blank = make_trajectory(rng, "alfworld", tokens, TURNS)
    mask, steps = np.zeros(tokens, np.uint8), []
    for turn, step in enumerate(blank.steps):
        end = (step.start + step.end) // 2
        mask[step.start : end] = 1
        call = '[{"name":"take_action","arguments":{"action":"go to shelf 1"}}]'
        answer = f"You arrive at shelf {turn}. On it you see a vase, a book and a lamp. " * 4
        steps.append(msgspec.structs.replace(step, end=end, call=call, answer=answer))
    return msgspec.structs.replace(
        blank,
        run_id=run_id,
        group_id="g",
        episode_id=uuid.uuid4().hex,
        token_ids=rng.integers(0, 150_000, tokens, dtype="<i4").tobytes(),
        loss_mask=mask.tobytes(),
        logprobs=(-rng.exponential(1.0, tokens).astype("<f4") * mask).tobytes(),
        steps=tuple(steps),
        started_at=1.7e9,
        finished_at=1.7e9 + 60,
    )


def ours(link: Broker, run_id: str, bodies: Sequence[Trajectory]) -> float:
    """Seconds until the last body is received and acknowledged."""
    publisher, consumer = link.publisher(), link.consumer(recorder_queue(run_id))
    began, left = time.perf_counter(), len(bodies)
    with ThreadPoolExecutor(THREADS) as pool:
        sent = [
            pool.submit(publisher.publish, TRAJECTORIES, run_id, EpisodeFinished(trajectory=body))
            for body in bodies
        ]
        while left:
            deliveries = consumer.receive(BULK, 5.0)
            consumer.ack(deliveries)
            left -= len(deliveries)
        for each in sent:
            each.result()
    seconds = time.perf_counter() - began
    publisher.close()
    consumer.close()
    return seconds


def bare(url: str, bodies: Sequence[bytes]) -> float:
    """The same of bytes through pika alone: one thread publishes with confirms, one consumes."""
    parameters, queue = pika.URLParameters(url), f"bare-{uuid.uuid4().hex}"
    sender, receiver = pika.BlockingConnection(parameters), pika.BlockingConnection(parameters)
    channel, taking = sender.channel(), receiver.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.confirm_delivery()
    taking.basic_qos(prefetch_count=BULK)
    properties = pika.BasicProperties(delivery_mode=2)

    def send() -> None:
        for body in bodies:
            channel.basic_publish("", queue, body, properties, mandatory=True)

    began = time.perf_counter()
    thread = threading.Thread(target=send)
    thread.start()
    for count, (method, _, _) in enumerate(taking.consume(queue), 1):
        if count % 100 == 0 or count == len(bodies):
            taking.basic_ack(method.delivery_tag, multiple=True)
        if count == len(bodies):
            break
    taking.cancel()
    thread.join()
    seconds = time.perf_counter() - began
    channel.queue_delete(queue)
    sender.close()
    receiver.close()
    return seconds


def admit(store: Store, run_id: str, bodies: Sequence[Trajectory]) -> None:
    """The run, and the attempts that the bodies are of: the recorder passes others over."""
    clock = store.clock()
    with store.write() as session:
        session.add(
            Run(
                run_id=run_id,
                name=run_id,
                config="{}",
                seed=0,
                state=RunState.RUNNING,
                created_at=clock,
            )
        )
        session.flush()
        group = NewGroup(f"{run_id}-g", "alfworld", 0, 0, "i", len(bodies))
        groups.admit_groups(session, session.get_one(Run, run_id), [group])
        session.flush()
        ids = [
            {"old": f"{run_id}-g-{place}", "new": b.episode_id} for place, b in enumerate(bodies)
        ]
        claim = "UPDATE episodes SET episode_id = :new, started_at = 1.7e9 WHERE episode_id = :old"
        session.execute(text(claim), ids)


def kept(store: Store, run_id: str, deliveries: Sequence[Delivery]) -> float:
    """Seconds that the recorder takes for bodies that were received."""
    began = time.perf_counter()
    for start in range(0, len(deliveries), BULK):
        recorder.keep_bodies(store, run_id, deliveries[start : start + BULK])
    return time.perf_counter() - began


def copied(store: Store, tables: dict[str, list[dict[str, Any]]]) -> float:
    """Seconds of COPY of rows straight into their tables, one transaction for each bulk."""
    url = store.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        began = time.perf_counter()
        for table, rows in tables.items():
            columns = list(rows[0])
            bulk = BULK * (len(rows) // len(tables["trajectories"]))
            for start in range(0, len(rows), bulk):
                with connection.cursor().copy(
                    f"COPY {table} ({','.join(columns)}) FROM STDIN"
                ) as copy:
                    for row in rows[start : start + bulk]:
                        copy.write_row([row[column] for column in columns])
                connection.commit()
        return time.perf_counter() - began


def from_queue(link: Broker, run_id: str, count: int) -> float:
    """Seconds of processor time that a trainer takes for the bodies in its queue."""
    with closing(link.consumer(trainer_queue(run_id))) as consumer:
        began, left = time.process_time(), count
        while left:
            deliveries = consumer.receive(BULK, 5.0)
            for each in deliveries:
                if isinstance(each.message, EpisodeFinished):
                    each.message.trajectory.sha256  # noqa: B018
            consumer.ack(deliveries)
            left -= len(deliveries)
        return time.process_time() - began


def from_table(store: Store, bodies: Sequence[Trajectory]) -> float:
    """Seconds of processor time that a trainer takes for stored bodies, a batch at a time."""
    began = time.process_time()
    for start in range(0, len(bodies), BATCH):
        wanted = {(body.episode_id, body.fence): body.sha256 for body in bodies[start:][:BATCH]}
        read = partial(stored_bodies.read_bodies, keys=list(wanted))
        found = store.ask(read)
        if len(found) < len(wanted):
            raise SystemExit("the recorder did not store every body")
        for key, wire in found.items():
            body_of(wire, wanted[key])
    return time.process_time() - began


def recorded(store: Store, run_id: str, bodies: Sequence[Trajectory]) -> tuple[float, float, float]:
    """Seconds of recorder and bare COPY for equally many bodies of other episodes, and processor
    time of a trainer that reads the first.
    """

    def named(suffix: str) -> list[Trajectory]:
        return [
            msgspec.structs.replace(body, episode_id=body.episode_id + suffix) for body in bodies
        ]

    own = named("r")
    admit(store, run_id, own)
    deliveries = [
        Delivery(message, encode(message), None)
        for message in (EpisodeFinished(trajectory=body) for body in own)
    ]
    again = named("c")
    rows = {
        "trajectories": [
            stored_bodies._row_with_size(  # noqa: SLF001
                recorder.body_row(body, encode(EpisodeFinished(trajectory=body)), 0.0)
            )
            for body in again
        ],
        "steps": [row for body in again for row in recorder.step_rows(body)],
    }
    kept_s = kept(store, run_id, deliveries)
    return kept_s, copied(store, rows), from_table(store, own)


def measure(given: argparse.Namespace, store: Store, link: Broker) -> dict[str, Any]:
    """By tokens of a trajectory: speeds of each arm and ratios, a figure a round."""
    figures: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    for tokens in given.tokens:
        run_id = f"bench-{uuid.uuid4().hex[:8]}"
        link.declare_run(run_id)
        one = len(msgspec.msgpack.encode(trajectory(run_id, tokens, rng)))
        found: dict[str, list[float]] = {}
        for _ in range(given.rounds):
            bodies = [trajectory(run_id, tokens, rng) for _ in range(BYTES // one)]
            plain = [encode(EpisodeFinished(trajectory=b), compress_above=1 << 30) for b in bodies]
            ours_s, bare_s = ours(link, run_id, bodies), bare(given.broker, plain)
            queue_s = from_queue(link, run_id, len(bodies))
            kept_s, copied_s, table_s = recorded(store, run_id, bodies)
            size = len(bodies) * one / 1e6
            for name, value in (
                ("broker_mb_s", size / ours_s),
                ("bare_pika_mb_s", size / bare_s),
                ("broker_ratio", bare_s / ours_s),
                ("recorder_bodies_s", len(bodies) / kept_s),
                ("copy_bodies_s", len(bodies) / copied_s),
                ("recorder_ratio", copied_s / kept_s),
                ("trainer_queue_ms", 1000 * queue_s / len(bodies)),
                ("trainer_table_ms", 1000 * table_s / len(bodies)),
            ):
                found.setdefault(name, []).append(round(value, 3))
            store.transact(partial(lifecycle.delete_run_rows, run_id=run_id))
        link.delete_run(run_id)
        figures[str(tokens)] = found | {"bytes": one}
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with closing(open_store(given.store)) as store, closing(broker.connect(given.broker)) as link:
        migrate.upgrade(store)
        figures = measure(given, store, link)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
