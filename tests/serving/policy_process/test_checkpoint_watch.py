"""When CheckpointWatch reads the lineage again: after a time, at an event, after an outage."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from served_lineage import ServedLineage
from store_outage import Outage
from structlog.testing import capture_logs

from agentrl import broker
from agentrl.broker.api import Broker
from agentrl.broker.messages import CheckpointPublished
from agentrl.broker.queue_names import EVENTS
from agentrl.serving.policy_process import LOOK_S, TICK_S, CheckpointWatch


@pytest.fixture
def link(lineage: ServedLineage) -> Iterator[Broker]:
    with closing(broker.connect(f"sqlite:///{lineage.home / 'queue.db'}")) as opened:
        yield opened


def names(watch: CheckpointWatch) -> list[str]:
    return [row.checkpoint_id for row in watch.live()]


@pytest.mark.parametrize("has_broker", [True, False])
def test_the_lineage_is_read_again_after_an_interval(
    lineage: ServedLineage, link: Broker, has_broker: bool
) -> None:
    lineage.publish(0)
    seconds = [0.0]
    run = lineage.followed_run(link if has_broker else None)
    with closing(CheckpointWatch(run, lambda: seconds[0])) as watch:
        if has_broker:
            watch.wait(60.0)  # it listens; what came before is looked for
        assert names(watch) == ["c0"]
        lineage.publish(1)
        seconds[0] += (LOOK_S if has_broker else TICK_S) - 0.01
        assert names(watch) == ["c0"]
        seconds[0] += 0.02
        assert names(watch) == ["c0", "c1"]


def test_the_lineage_is_read_again_at_an_event(lineage: ServedLineage, link: Broker) -> None:
    lineage.publish(0)
    with closing(CheckpointWatch(lineage.followed_run(link), lambda: 0.0)) as watch:
        watch.wait(60.0)
        assert names(watch) == ["c0"]
        lineage.publish(1)
        assert names(watch) == ["c0"]
        event = CheckpointPublished(run_id="run", version=1, checkpoint_id="c1")
        link.publisher().publish(EVENTS, "run", event)
        watch.wait(60.0)
        assert names(watch) == ["c0", "c1"]


def test_the_last_known_lineage_stays_while_the_store_is_unavailable(
    lineage: ServedLineage,
) -> None:
    lineage.publish(0)
    seconds, outage = [0.0], Outage(lineage.store)
    with (
        capture_logs() as lines,
        closing(CheckpointWatch(lineage.followed_run(), lambda: seconds[0])) as watch,
    ):
        assert names(watch) == ["c0"]
        outage.begin()
        for _ in range(3):
            refused = outage.refused
            seconds[0] += TICK_S + 0.01
            assert names(watch) == ["c0"]
            assert outage.refused > refused
        outage.end()
        lineage.publish(1)
        seconds[0] += TICK_S + 0.01
        assert names(watch) == ["c0", "c1"]
    assert [line["event"] for line in lines] == [
        "Waiting for a service that is unavailable",
        "Service is available again",
    ]
