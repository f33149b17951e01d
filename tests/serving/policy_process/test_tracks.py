"""Which checkpoints a policy server serves while the lineage of its run grows or rolls back."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

from running import eventually
from served_lineage import ServedLineage, complete, policy_server, server_config

from agentrl import broker
from agentrl.broker.messages import PoolChanged
from agentrl.core.types import CheckpointState, RunState
from agentrl.db.models.updates import Checkpoint
from agentrl.db.transitions import runs
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.local.engine import LocalEngine


def test_tracks_follow_the_lineage_and_former_checkpoints_are_released(
    lineage: ServedLineage,
) -> None:
    lineage.publish(0)
    with policy_server(lineage, server_config("current", "lagged(1)")):
        lineage.await_live({"current": "c0", "lagged(1)": "c0"})
        url = lineage.url()
        first = complete(url, "c0")[1]["choices"][0]["token_ids"]
        lineage.publish(1)
        lineage.await_live({"current": "c1", "lagged(1)": "c0"})
        second = complete(url, "c1")[1]["choices"][0]["token_ids"]
        assert complete(url, "c0")[1]["choices"][0]["token_ids"] == first != second
        lineage.publish(2)
        lineage.await_live({"current": "c2", "lagged(1)": "c1"})
        assert complete(url, "c1")[1]["choices"][0]["token_ids"] == second
        assert complete(url, "c0")[0] == 404
    assert lineage.live() == {}
    assert lineage.servings() == [
        ("current", "c0", False),
        ("lagged(1)", "c0", False),
        ("current", "c1", False),
        ("lagged(1)", "c1", False),
        ("current", "c2", False),
    ]


class BlockedEngine(LocalEngine):
    """An engine that begins no request before `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def submit(self, request: Request) -> Future[Completion]:
        future = Future[Completion]()

        def submit_later() -> None:
            self.go.wait(200)
            try:
                future.set_result(LocalEngine.submit(self, request).result())
            except Exception as error:
                future.set_exception(error)

        threading.Thread(target=submit_later).start()
        self.asked.set()
        return future


def test_a_former_checkpoint_is_served_until_its_requests_have_ended(
    lineage: ServedLineage,
) -> None:
    lineage.publish(0)
    engine = BlockedEngine()
    with (
        policy_server(lineage, server_config("current"), engine=engine),
        ThreadPoolExecutor(1) as pool,
    ):
        lineage.await_live({"current": "c0"})
        begun = pool.submit(complete, lineage.url(), "c0", 20)
        assert engine.asked.wait(60)
        lineage.publish(1)
        lineage.await_live({"current": "c1"})
        assert not begun.done()
        assert lineage.servings() == [("current", "c0", True), ("current", "c1", True)]
        engine.go.set()
        status, answer = begun.result(timeout=60)
        assert (status, len(answer["choices"][0]["token_ids"])) == (200, 20)
        eventually(
            lambda: lineage.servings() == [("current", "c0", False), ("current", "c1", True)],
            within_s=60,
            text=lambda: str(lineage.servings()),
        )


def test_a_rolled_back_checkpoint_is_replaced_by_the_one_before(lineage: ServedLineage) -> None:
    for version in range(3):
        lineage.publish(version)
    with policy_server(lineage, server_config("current")):
        lineage.await_live({"current": "c2"})
        with lineage.store.write() as session:
            session.get_one(Checkpoint, "c2").state = CheckpointState.ROLLED_BACK
        lineage.await_live({"current": "c1"})


def test_a_server_started_before_the_first_checkpoint_waits_for_it(lineage: ServedLineage) -> None:
    with policy_server(lineage, server_config("current", "pinned(c0)")):
        lineage.await_server()
        assert lineage.live() == {}
        lineage.publish(0)
        lineage.await_live({"current": "c0", "pinned(c0)": "c0"})
        lineage.publish(1)
        lineage.await_live({"current": "c1", "pinned(c0)": "c0"})


def test_a_server_follows_its_run_after_the_runs_end(lineage: ServedLineage) -> None:
    """The trainer's last checkpoint may come late, and is measured."""
    lineage.publish(0)
    with policy_server(lineage, server_config("current")):
        lineage.await_live({"current": "c0"})
        with lineage.store.write() as session:
            runs.move_run(session, "run", RunState.STOPPED)
        assert complete(lineage.url(), "c0")[0] == 200
        lineage.publish(1)
        lineage.await_live({"current": "c1"})
        assert complete(lineage.url(), "c1")[0] == 200
    assert lineage.live() == {}


def test_a_change_of_what_is_served_is_announced(lineage: ServedLineage) -> None:
    with (
        closing(broker.connect(f"sqlite:///{lineage.home / 'queue.db'}")) as link,
        closing(link.subscriber("run")) as events,
        policy_server(lineage, server_config("current"), link=link),
    ):
        lineage.publish(0)
        assert {each.message for each in events.receive(9, 60.0)} == {PoolChanged(run_id="run")}
        lineage.await_live({"current": "c0"})
