"""How a policy server starts, renews its lease, reports problems and ends."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from running import eventually
from served_lineage import ServedLineage, complete, http, policy_server, server_config
from sqlalchemy import text
from sqlalchemy.orm import Session
from store_outage import Outage, forbid_waiting

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ConfigError, StoreError
from agentrl.db.models.processes import PolicyServer as ServerRow
from agentrl.db.registry import checkpoints
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.local.engine import LocalEngine
from agentrl.serving.policy_process import EngineDied, _beat, serve_policy
from agentrl.serving.registration import Registration
from agentrl.serving.served_checkpoints import ServedCheckpoints


def test_a_scripted_server_needs_no_weights(
    lineage: ServedLineage, save_model: Callable[[str], Path]
) -> None:
    lineage.publish(0)
    config = config_loading.loads(
        f'tasks.dbbench = {{}}\nmodel.path = "{save_model("a")}"\n'
        '[[policy]]\nname = "policy"\nengine = "scripted"\n'
    )
    with policy_server(lineage, config):
        lineage.await_live({"current": "c0"})
        assert complete(lineage.url(), "c0")[0] == 200


@pytest.mark.parametrize(
    "options",
    [
        {"tracks": ["newest"]},
        {"token_env": "A_VARIABLE_NOBODY_SETS"},
        {"host": "0.0.0.0"},  # noqa: S104
    ],
)
def test_a_server_with_a_wrong_setting_is_refused_and_leaves_neither_row_nor_thread(
    lineage: ServedLineage, options: dict[str, Any]
) -> None:
    server = PolicyServer(**({"name": "policy"} | options))
    config = Config(tasks={"dbbench": Task()})
    before = set(threading.enumerate())
    with pytest.raises(ConfigError):
        serve_policy(serving_config(config), server, lineage.followed_run(), threading.Event())
    assert not set(threading.enumerate()) - before
    assert lineage.live() == {}


def test_a_port_in_use_is_refused(lineage: ServedLineage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = PolicyServer(name="policy", port=taken.getsockname()[1])
        config = Config(tasks={"dbbench": Task()})
        with pytest.raises(ConfigError, match="cannot listen"):
            serve_policy(serving_config(config), server, lineage.followed_run(), threading.Event())


def _submit_server(
    pool: ThreadPoolExecutor, lineage: ServedLineage, engine: LocalEngine | None = None
) -> Future[None]:
    """Start a policy server that has to end by itself; wait until it serves c0."""
    config = server_config("current")
    make = None if engine is None else lambda *_: engine
    run, stop = lineage.followed_run(), threading.Event()
    ended = pool.submit(serve_policy, serving_config(config), config.policy[0], run, stop, make)
    lineage.await_live({"current": "c0"})
    return ended


class MortalEngine(LocalEngine):
    """An engine whose compute thread ends at the next step after `die`."""

    def die(self) -> None:
        def step() -> None:
            raise SystemExit

        (batch,) = self._batches.values()
        batch.step = step  # type: ignore[method-assign]


@pytest.mark.filterwarnings("ignore:Exception in thread engine")
def test_a_server_whose_engine_died_ends_with_an_error(lineage: ServedLineage) -> None:
    lineage.publish(0)
    engine = MortalEngine()
    with ThreadPoolExecutor(2) as pool:
        ended = _submit_server(pool, lineage, engine)
        url = lineage.url()
        assert http.request("GET", f"{url}/health").status == 200
        engine.die()
        pool.submit(complete, url, "c0")
        with pytest.raises(EngineDied, match="engine's thread ended") as died:
            ended.result(60)
    assert died.value.exit_code == 1
    assert lineage.live() == {}


@pytest.mark.parametrize("tables", [["servings"], ["servings", "policy_servers"]])
def test_a_server_whose_rows_the_database_lost_ends_with_an_error(
    lineage: ServedLineage, tables: list[str]
) -> None:
    """A supervisor starts it again, and it registers anew."""
    lineage.publish(0)
    with ThreadPoolExecutor(1) as pool:
        ended = _submit_server(pool, lineage)
        for table in tables:
            with lineage.store.write() as session:
                session.execute(text(f"DELETE FROM {table}"))  # noqa: S608
        with pytest.raises(StoreError, match="the database lost rows of policy server policy"):
            ended.result(60)
    assert lineage.live() == {}


class TroubledEngine(LocalEngine):
    """An engine that reports a problem."""

    def problem(self) -> str:
        return "vLLM is down: out of memory"


def test_the_problem_of_an_engine_is_in_the_row_of_its_server(lineage: ServedLineage) -> None:
    def problems() -> dict[str, str]:
        return lineage.store.ask(lambda session: checkpoints.server_problems(session, "run"))

    with policy_server(lineage, server_config("current"), engine=TroubledEngine()):
        eventually(lambda: problems() != {}, within_s=60, text=lambda: "no problem is reported")
        assert problems() == {"policy": "vLLM is down: out of memory"}


def test_a_lease_is_renewed_again_once_the_store_is_back(lineage: ServedLineage) -> None:
    server = PolicyServer(name="p", beat_s=0.01, lease_s=1000.0)
    registration = Registration("run", lineage.store, server)
    registration.register("local", "http://p")

    def lease_until(session: Session) -> float:
        return session.get_one(ServerRow, registration.server_id).lease_until

    before = lineage.store.ask(lease_until)
    forbid_waiting(lineage.store)
    outage, ended = Outage(lineage.store), threading.Event()
    outage.begin()
    with ThreadPoolExecutor(1) as pool:
        beats = pool.submit(
            _beat, registration, lineage.store, ServedCheckpoints(), server.beat_s, ended
        )
        eventually(lambda: outage.refused > 2, within_s=60, text=lambda: "it does not beat")
        outage.end()
        eventually(
            lambda: lineage.store.ask(lease_until) > before,
            within_s=60,
            text=lambda: f"the lease is not renewed; ended: {beats.done()}",
        )
        ended.set()
        beats.result(60)
