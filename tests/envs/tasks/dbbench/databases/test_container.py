"""The database in a container is the database in the process: same replies, same rewards."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import docker
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError
from agentrl.envs import registry
from agentrl.envs.contract import Item, Outcome, TaskSource, ToolCall
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import Sandboxes, Spec, make_sandboxes
from agentrl.envs.tasks.dbbench.databases.container import ContainedDatabase, program
from agentrl.envs.tasks.dbbench.databases.sqlite import TIMED_OUT, SqliteDatabase
from agentrl.envs.tasks.dbbench.problem import Table

TABLE = Table("staff", ["name", "pay"], [["kim", "52"], ["bob", "17"], ["zoë", "-1"]])
ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"

Open = Callable[..., ContainedDatabase]


@pytest.fixture
def sandboxes(engine: Engine, sandbox_image: str) -> Iterator[Sandboxes]:
    with closing(Sandboxes(engine, Spec(sandbox_image, program()))) as pool:
        yield pool


def conversation(source: TaskSource, item: Item, seed: int) -> list[Any]:
    """Everything an expert that errs says and is told."""
    environment, said = source.make(item), list[Any]()
    expert = source.expert(item, seed=seed, noise=0.5)
    try:
        outcome = Outcome(environment.start().messages)
        while not outcome.done and len(said) < source.max_turns:
            call = expert.act(outcome.messages)
            outcome = environment.call([call] if isinstance(call, ToolCall) else call)
            said.append((call, outcome))
    finally:
        environment.close()
    return said


def test_a_conversation_in_a_container_is_the_one_in_the_process(
    engine: Engine, sandbox_image: str
) -> None:
    options = {"items": 40, "difficulty": "medium"}
    inside = registry.source("dbbench", options)
    outside = registry.source("dbbench", options | {"container": True})
    assert outside.items("train") == inside.items("train")
    (pool,) = make_sandboxes(outside, engine, sandbox_image)
    with closing(pool):
        for seed, item in enumerate(inside.items("train")):
            assert conversation(outside, item, seed) == conversation(inside, item, seed)


def test_mysqls_dialect_is_the_same_in_a_container(engine: Engine, sandbox_image: str) -> None:
    options = {"items": 16, "difficulty": "hard", "dialect": "mysql"}
    inside = registry.source("dbbench", options)
    outside = registry.source("dbbench", options | {"container": True})
    (pool,) = make_sandboxes(outside, engine, sandbox_image)
    with closing(pool):
        for seed, item in enumerate(inside.items("train")):
            assert conversation(outside, item, seed) == conversation(inside, item, seed)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sql=st.text(max_size=60) | st.sampled_from(["select * from staff", "drop table staff", ""]))
def test_any_statement_gets_the_same_reply(sandboxes: Sandboxes, sql: str) -> None:
    with (
        closing(SqliteDatabase([TABLE], timeout_s=1.0)) as inside,
        closing(ContainedDatabase([TABLE], sandboxes=sandboxes, timeout_s=1.0)) as outside,
    ):
        assert outside.execute(sql) == inside.execute(sql)
        assert outside.table_hash() == inside.table_hash()


def test_an_endless_statement_times_out_and_the_episode_goes_on(sandboxes: Sandboxes) -> None:
    with closing(ContainedDatabase([TABLE], sandboxes=sandboxes, timeout_s=0.2)) as database:
        assert database.execute(ENDLESS) == TIMED_OUT
        assert database.execute("select pay from staff limit 1") == "[('52',)]"


def test_an_episode_sees_nothing_of_the_one_before(sandboxes: Sandboxes) -> None:
    with closing(ContainedDatabase([TABLE], sandboxes=sandboxes, timeout_s=1.0)) as database:
        database.execute("create table secret (word text)")
    other = Table("zoo", ["pet"], [["emu"]])
    with closing(ContainedDatabase([other], sandboxes=sandboxes, timeout_s=1.0)) as database:
        assert "no such table: secret" in database.execute("select * from secret")
        assert "no such table: staff" in database.execute("select * from staff")


def test_a_killed_container_fails_the_episode_and_the_next_one_is_fine(
    sandboxes: Sandboxes, docker_client: docker.DockerClient
) -> None:
    database = ContainedDatabase([TABLE], sandboxes=sandboxes, timeout_s=1.0)
    docker_client.containers.get(database._lease.sandbox.container).kill()
    with pytest.raises(EnvironmentFailure, match="its process ended"):
        database.execute("select 1")
    with pytest.raises(EnvironmentFailure, match="closed"):
        database.execute("select 1")
    database.close()
    with closing(ContainedDatabase([TABLE], sandboxes=sandboxes, timeout_s=1.0)) as fresh:
        assert fresh.execute("select 1") == "[(1,)]"


def test_a_broken_table_is_the_items_fault_and_frees_the_sandbox(sandboxes: Sandboxes) -> None:
    with pytest.raises(ItemError, match="table twice"):
        ContainedDatabase([Table("twice", ["a", "a"], [])], sandboxes=sandboxes, timeout_s=1.0)
    with closing(ContainedDatabase([TABLE], sandboxes=sandboxes, timeout_s=1.0)) as fresh:
        assert fresh.execute("select 1") == "[(1,)]"


def test_without_an_env_server_the_option_is_refused() -> None:
    source = registry.source("dbbench", {"container": True, "items": 1})
    with pytest.raises(ConfigError, match="needs an env server"):
        source.make(source.items("train")[0])
