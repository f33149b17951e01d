"""The policy server's process loop over a real store, files and HTTP."""

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3
from checkpoint_rows import register
from running import eventually
from sqlalchemy import select, text
from store_outage import Outage, forbid_waiting
from structlog.testing import capture_logs

from agentrl import broker
from agentrl.broker.api import Broker
from agentrl.broker.messages import CheckpointPublished, PoolChanged
from agentrl.broker.queue_names import EVENTS
from agentrl.checkpoints import manifest
from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ConfigError, StoreError
from agentrl.core.types import CheckpointState, RunState
from agentrl.db.admin import migrate
from agentrl.db.models.processes import PolicyServer as ServerRow
from agentrl.db.models.processes import Serving
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints, policy_servers
from agentrl.db.store import Store, now, open_store
from agentrl.db.transitions import runs
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.local.engine import LocalEngine
from agentrl.serving.policy_process import (
    LOOK_S,
    TICK_S,
    CheckpointWatch,
    EngineDied,
    FollowedRun,
    _beat,
    serve_policy,
)
from agentrl.serving.served_checkpoints import ServedCheckpoints

Save = Callable[[str], Path]
http = urllib3.PoolManager(retries=False)


class Lineage:
    """A run whose checkpoints a test publishes."""

    def __init__(self, home: Path, save_model: Save) -> None:
        self.home = home
        self.save_model = save_model
        self.store: Store = open_store(f"sqlite:///{home / 'store.db'}")
        migrate.upgrade(self.store)
        with self.store.write() as session:
            session.add(
                Run(run_id="run", name="run", config="", seed=0, state=RunState.RUNNING,
                    created_at=now())
            )  # fmt: skip

    def publish(self, version: int) -> str:
        name = f"c{version}"
        path = self.home / name
        shutil.copytree(self.save_model("ab"[version % 2]), path)
        described = manifest.Manifest(name, version, None, manifest.digests(path))
        manifest.write(path, described)
        register(self.store, name, version, path)
        return name

    def run(self, broker: Broker | None = None) -> FollowedRun:
        return FollowedRun("run", self.store, broker)

    def live(self) -> dict[str, str]:
        """checkpoint_id by track, as samplers see it."""
        with self.store.read() as session:
            return {p.track: p.checkpoint_id for p in checkpoints.live_policies(session, "run")}

    def url(self) -> str:
        with self.store.read() as session:
            return checkpoints.live_policies(session, "run")[0].url

    def await_live(self, expected: dict[str, str]) -> None:
        eventually(lambda: self.live() == expected, within_s=100, text=lambda: str(self.live()))

    def await_server(self) -> None:
        """Until a policy server is registered."""

        def registered() -> bool:
            with self.store.read() as session:
                return session.scalars(select(ServerRow)).first() is not None

        eventually(registered, within_s=100, text=lambda: "no policy server is registered")

    def servings(self) -> list[tuple[str, str, bool]]:
        with self.store.read() as session:
            rows = session.scalars(select(Serving).order_by(Serving.serving_id))
            return [(row.track, row.checkpoint_id, row.live_until is None) for row in rows]


@pytest.fixture
def lineage(tmp_path: Path, save_model: Save) -> Iterator[Lineage]:
    lineage = Lineage(tmp_path, save_model)
    yield lineage
    lineage.store.close()


@contextmanager
def serving(
    lineage: Lineage,
    *tracks: str,
    link: Broker | None = None,
    engine: LocalEngine | None = None,
) -> Iterator[threading.Thread]:
    """A policy server in a thread; told to stop at the end, and joined."""
    server = PolicyServer(name="policy", tracks=list(tracks), beat_s=0.1)
    config = Config(tasks={"dbbench": Task()}, policy=[server])
    stop = threading.Event()
    made = None if engine is None else lambda *_: engine
    run = lineage.run(link)
    thread = threading.Thread(
        target=serve_policy, args=(serving_config(config), server, run, stop, made)
    )
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def complete(url: str, model: str, max_tokens: int = 8) -> tuple[int, Any]:
    body = {"model": model, "prompt": [1, 2, 3], "max_tokens": max_tokens, "temperature": 0,
            "return_token_ids": True, "logprobs": 1}  # fmt: skip
    answer = http.request("POST", f"{url}/v1/completions", body=json.dumps(body).encode())
    return answer.status, json.loads(answer.data)


def test_tracks_follow_the_lineage_and_former_checkpoints_retire(lineage: Lineage) -> None:
    lineage.publish(0)
    with serving(lineage, "current", "lagged(1)"):
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


class Held(LocalEngine):
    """Begins when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def submit(self, request: Request) -> Future[Completion]:
        future = Future[Completion]()

        def later() -> None:
            self.go.wait(200)
            try:
                future.set_result(LocalEngine.submit(self, request).result())
            except Exception as error:
                future.set_exception(error)

        threading.Thread(target=later).start()
        self.asked.set()
        return future


def test_a_swap_waits_for_the_requests_of_the_former_checkpoint(
    lineage: Lineage,
) -> None:
    lineage.publish(0)
    engine = Held()
    with serving(lineage, "current", engine=engine), ThreadPoolExecutor(1) as pool:
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


def test_a_rolled_back_lineage_is_left(lineage: Lineage) -> None:
    for version in range(3):
        lineage.publish(version)
    with serving(lineage, "current"):
        lineage.await_live({"current": "c2"})
        with lineage.store.write() as session:
            row = session.get(Checkpoint, "c2")
            assert row is not None
            row.state = CheckpointState.ROLLED_BACK
        lineage.await_live({"current": "c1"})


def test_a_server_started_before_the_first_checkpoint_waits_for_it(lineage: Lineage) -> None:
    with serving(lineage, "current", "pinned(c0)"):
        lineage.await_server()
        assert lineage.live() == {}
        lineage.publish(0)
        lineage.await_live({"current": "c0", "pinned(c0)": "c0"})
        lineage.publish(1)
        lineage.await_live({"current": "c1", "pinned(c0)": "c0"})


def test_a_run_that_is_over_can_still_be_measured(lineage: Lineage) -> None:
    lineage.publish(0)
    with serving(lineage, "current"):
        lineage.await_live({"current": "c0"})
        with lineage.store.write() as session:
            runs.move_run(session, "run", RunState.STOPPED)
        assert complete(lineage.url(), "c0")[0] == 200
        lineage.publish(1)  # the trainer's last one may come late
        lineage.await_live({"current": "c1"})
        assert complete(lineage.url(), "c1")[0] == 200
    assert lineage.live() == {}


def names(watch: CheckpointWatch) -> list[str]:
    return [row.checkpoint_id for row in watch.live()]


@pytest.mark.parametrize("linked", [True, False])
def test_the_lineage_is_read_again_when_its_time_has_come(lineage: Lineage, linked: bool) -> None:
    lineage.publish(0)
    seconds = [0.0]
    with ExitStack() as stack:
        link = None
        if linked:
            link = broker.connect(f"sqlite:///{lineage.home / 'queue.db'}")
            stack.callback(link.close)
        watch = stack.enter_context(closing(CheckpointWatch(lineage.run(link), lambda: seconds[0])))
        if linked:
            watch.wait(60.0)  # it listens; what came before is looked for
        assert names(watch) == ["c0"]
        lineage.publish(1)
        seconds[0] += (LOOK_S if linked else TICK_S) - 0.01
        assert names(watch) == ["c0"]
        seconds[0] += 0.02
        assert names(watch) == ["c0", "c1"]


def test_the_lineage_is_read_again_at_an_event(lineage: Lineage) -> None:
    lineage.publish(0)
    with (
        closing(broker.connect(f"sqlite:///{lineage.home / 'queue.db'}")) as link,
        closing(CheckpointWatch(lineage.run(link), lambda: 0.0)) as watch,
    ):
        watch.wait(60.0)
        assert names(watch) == ["c0"]
        lineage.publish(1)
        assert names(watch) == ["c0"]
        event = CheckpointPublished(run_id="run", version=1, checkpoint_id="c1")
        link.publisher().publish(EVENTS, "run", event)
        watch.wait(60.0)
        assert names(watch) == ["c0", "c1"]


def test_the_pools_are_told_of_what_is_served(lineage: Lineage) -> None:
    with (
        closing(broker.connect(f"sqlite:///{lineage.home / 'queue.db'}")) as link,
        closing(link.subscriber("run")) as pools,
        serving(lineage, "current", link=link),
    ):
        lineage.publish(0)
        assert {each.message for each in pools.receive(9, 60.0)} == {PoolChanged(run_id="run")}
        lineage.await_live({"current": "c0"})


def test_a_scripted_server_needs_no_weights(lineage: Lineage, save_model: Save) -> None:
    lineage.publish(0)
    server = PolicyServer(name="policy", engine="scripted")
    config = config_loading.loads(f'tasks.dbbench = {{}}\nmodel.path = "{save_model("a")}"\n')
    stop = threading.Event()
    thread = threading.Thread(
        target=serve_policy, args=(serving_config(config), server, lineage.run(), stop)
    )
    thread.start()
    lineage.await_live({"current": "c0"})
    assert complete(lineage.url(), "c0")[0] == 200
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tracks": ["newest"]}, ConfigError),
        ({"token_env": "A_VARIABLE_NOBODY_SETS"}, ConfigError),
        ({"host": "0.0.0.0"}, ConfigError),  # noqa: S104
    ],
)
def test_a_server_that_cannot_start_says_why_and_leaves_no_row(
    lineage: Lineage, options: dict[str, Any], error: type[Exception]
) -> None:
    server = PolicyServer(**({"name": "policy"} | options))
    config = Config(tasks={"dbbench": Task()})
    before = set(threading.enumerate())
    with pytest.raises(error):
        serve_policy(serving_config(config), server, lineage.run(), threading.Event())
    assert not set(threading.enumerate()) - before
    assert lineage.live() == {}


class Mortal(LocalEngine):
    """An engine whose compute thread ends at the next step."""

    def die(self) -> None:
        def step() -> None:
            raise SystemExit

        (batch,) = self._batches.values()
        batch.step = step  # type: ignore[method-assign]


@pytest.mark.filterwarnings("ignore:Exception in thread engine")
def test_a_server_whose_engine_died_says_so_and_ends(
    lineage: Lineage,
) -> None:
    lineage.publish(0)
    engine = Mortal()
    server = PolicyServer(name="policy", tracks=["current"])
    config = Config(tasks={"dbbench": Task()}, policy=[server])
    with ThreadPoolExecutor(2) as pool:
        run, stop = lineage.run(), threading.Event()
        ended = pool.submit(
            serve_policy, serving_config(config), server, run, stop, lambda *_: engine
        )
        lineage.await_live({"current": "c0"})
        url = lineage.url()
        assert http.request("GET", f"{url}/health").status == 200
        engine.die()
        pool.submit(complete, url, "c0")
        with pytest.raises(EngineDied, match="engine's thread ended") as told:
            ended.result(60)
    assert told.value.exit_code == 1
    assert lineage.live() == {}


@pytest.mark.parametrize("table", ["servings", "policy_servers"])
def test_a_server_whose_rows_the_database_lost_ends_so_that_it_starts_anew(
    lineage: Lineage, table: str
) -> None:
    lineage.publish(0)
    server = PolicyServer(name="policy", tracks=["current"], beat_s=0.1)
    config = Config(tasks={"dbbench": Task()}, policy=[server])
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(
            serve_policy, serving_config(config), server, lineage.run(), threading.Event()
        )
        lineage.await_live({"current": "c0"})
        for lost in ("servings", "policy_servers")[: 1 + (table == "policy_servers")]:
            with lineage.store.write() as session:
                session.execute(text(f"DELETE FROM {lost}"))  # noqa: S608
        with pytest.raises(StoreError, match="the database lost rows of policy server policy"):
            ended.result(60)
    assert lineage.live() == {}


class Troubled(LocalEngine):
    """An engine that says what keeps it from serving."""

    def problem(self) -> str:
        return "vLLM is down: out of memory"


def test_what_keeps_an_engine_from_serving_stands_in_the_row_of_its_server(
    lineage: Lineage,
) -> None:
    def problems() -> dict[str, str]:
        return lineage.store.ask(lambda session: checkpoints.server_problems(session, "run"))

    with serving(lineage, "current", engine=Troubled()):
        eventually(lambda: problems() != {}, within_s=60, text=lambda: "no problem is told")
        assert problems() == {"policy": "vLLM is down: out of memory"}


def test_a_taken_port_is_refused(lineage: Lineage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = PolicyServer(name="policy", port=taken.getsockname()[1])
        config = Config(tasks={"dbbench": Task()})
        with pytest.raises(ConfigError, match="cannot listen"):
            serve_policy(serving_config(config), server, lineage.run(), threading.Event())


def test_a_store_that_is_away_leaves_what_is_served_and_is_asked_again(lineage: Lineage) -> None:
    lineage.publish(0)
    seconds, outage = [0.0], Outage(lineage.store)
    with (
        capture_logs() as lines,
        closing(CheckpointWatch(lineage.run(), lambda: seconds[0])) as watch,
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


def test_a_lease_is_extended_again_once_the_store_is_back(lineage: Lineage) -> None:
    row = ServerRow(server_id="p-1", run_id="run", name="p", engine="local", url="http://p")
    lineage.store.transact(lambda s: policy_servers.register_server(s, row, lease_s=0.0))
    forbid_waiting(lineage.store)
    outage, ended = Outage(lineage.store), threading.Event()
    outage.begin()
    server = PolicyServer(name="p", beat_s=0.01, lease_s=1000.0)
    with ThreadPoolExecutor(1) as pool:
        beats = pool.submit(_beat, lineage.store, server, "p-1", ServedCheckpoints(), ended)
        eventually(lambda: outage.refused > 2, within_s=60, text=lambda: "it does not beat")
        outage.end()
        eventually(
            lambda: lineage.store.ask(
                lambda s: s.get_one(ServerRow, "p-1").lease_until > s.scalar(select(now()))
            ),
            within_s=60,
            text=lambda: f"the lease stands still; ended: {beats.done()}",
        )
        ended.set()
        beats.result(60)
