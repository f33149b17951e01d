"""Episodes on a real server: the same rules, each in a database that is its own and then gone."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pytest
from running import eventually

from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError
from agentrl.envs import registry
from agentrl.envs.contract import Outcome, ToolCall
from agentrl.envs.tasks.dbbench.databases.server import PREFIX, Server
from agentrl.envs.tasks.dbbench.databases.server_database import ServerDatabase
from agentrl.envs.tasks.dbbench.databases.sqlite import MAX_TEXT, TIMED_OUT
from agentrl.envs.tasks.dbbench.problem import Table

TABLE = Table("The Staff", ["name", "pay %s"], [["Kim", "52"], ["Zoë", "9"], ["100%", "{}"]])
ENDLESS = "select count(*) from seq_1_to_9999999 a, seq_1_to_9999999 b where a.seq * b.seq < rand()"


@pytest.fixture
def server(mariadb_url: str) -> Server:
    return Server.at(mariadb_url, "")


@pytest.fixture
def database(server: Server) -> Iterator[ServerDatabase]:
    with closing(ServerDatabase([TABLE], server=server, timeout_s=30.0)) as opened:
        yield opened


def asked(server: Server, sql: str) -> list[Any]:
    connection = server.connect()
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(sql)
        return [row[0] for row in cursor.fetchall()]


def left(server: Server, name: str) -> list[Any]:
    """The databases and users of this name."""
    users = f"select user from mysql.user where user = '{name}'"  # noqa: S608
    return asked(server, f"show databases like '{name}'") + asked(server, users)


def test_statements_are_answered_as_by_the_server(database: ServerDatabase) -> None:
    assert database.execute("select * from `The Staff` where name='ZOE'") == "[('Zoë', '9')]"
    assert database.execute("update `The Staff` set `pay %s`=7 where name like '%m'") == "[]"
    assert database.execute("select sum(`pay %s`), count(*)/2 from `The Staff`") == (
        "[(16.0, Decimal('1.5000'))]"
    )
    assert database.execute("select nope from `The Staff`").startswith(
        "Error executing query: 1054 (42S22): Unknown column 'nope'"
    )
    assert "(42000)" in database.execute("select 1; drop table `The Staff`")


def test_the_hash_is_the_one_of_the_rules(server: Server) -> None:
    """By `md5sum`, as in test_scoring.py."""
    tables = [Table("t", ["x", "y"], [["b", "2"], ["a", "1"]])]
    with closing(ServerDatabase(tables, server=server, timeout_s=5.0)) as database:
        assert database.table_hash() == "94daf81f5ba0a57d9f93c36e502f5e0d"
        database.execute("begin")
        database.execute("delete from t")
        assert database.table_hash() == "None"
        database.execute("drop table t")
        assert database.table_hash() == ""


def test_a_long_result_is_cut_and_its_statement_ended(server: Server) -> None:
    """One that was not ended would be read to its end: ten gigabytes."""
    with closing(ServerDatabase([TABLE], server=server, timeout_s=600.0)) as database:
        reply = database.execute("select seq, repeat('x', 100) from seq_1_to_99999999")
        assert len(reply) == MAX_TEXT + len("[TRUNCATED]")
        assert database.execute("select 1") == "[(1,)]"


@pytest.mark.parametrize("before", ["select 1", "set session max_statement_time = 0"])
def test_a_statement_that_takes_too_long_is_told_so(server: Server, before: str) -> None:
    opened = ServerDatabase([TABLE], server=server, timeout_s=3.0, grace_s=3.0)
    with closing(opened) as database:
        database.execute(before)
        assert database.execute(ENDLESS) == TIMED_OUT
        assert database.execute("select 1") == "[(1,)]"


def test_a_benchmark_that_was_cut_is_told_so(server: Server) -> None:
    """The server ends it in time, and answers as if it had run to its end."""
    with closing(ServerDatabase([TABLE], server=server, timeout_s=3.0)) as database:
        assert database.execute("select benchmark(1000000000000, md5('x'))") == TIMED_OUT
        assert database.execute("select benchmark(10, md5('x'))") == "[(0,)]"


def test_an_episode_that_kills_its_connection_goes_on(database: ServerDatabase) -> None:
    assert database.execute("kill connection_id()").startswith("Error executing query: ")
    assert database.execute("select 1") == "[(1,)]"


@pytest.mark.parametrize(
    "sql",
    [
        "select * from mysql.user",
        "create database agentrl_mine",
        "select 'x' into outfile '/tmp/agentrl_outfile'",
        "load data local infile '/etc/passwd' into table `The Staff`",
        "set global max_statement_time = 0",
        "drop user root@localhost",
        "create user mine",
        "grant all on *.* to mine",
        "use mysql",
    ],
)
def test_nothing_outside_its_database_is_reached(database: ServerDatabase, sql: str) -> None:
    before = database.table_hash()
    assert database.execute(sql).startswith("Error executing query: ")
    assert database.table_hash() == before


def test_episodes_do_not_see_each_other(server: Server, database: ServerDatabase) -> None:
    with closing(ServerDatabase([TABLE], server=server, timeout_s=30.0)) as other:
        assert database.execute("show databases") == "[('dbbench',), ('information_schema',)]"
        assert other._name not in database.execute("select * from information_schema.schemata")
        denied = database.execute(f"select * from {other._name}.`The Staff`")  # noqa: S608
        assert denied.startswith("Error executing query: 1142")


@pytest.mark.parametrize("sql", ["\ud800", "", "\0", "select '\U0001f600'", "select %s", "?"])
def test_awkward_text_is_answered_with_text(database: ServerDatabase, sql: str) -> None:
    assert isinstance(database.execute(sql), str)


def test_closing_leaves_nothing_and_can_be_repeated(server: Server) -> None:
    database = ServerDatabase([TABLE], server=server, timeout_s=30.0)
    assert len(left(server, database._name)) == 2
    database.close()
    database.close()
    assert left(server, database._name) == []
    with pytest.raises(EnvironmentFailure, match="closed"):
        database.execute("select 1")


def test_a_broken_table_is_the_items_fault_and_leaves_nothing(server: Server) -> None:
    name, twice = f"agentrl_broken_{secrets.token_hex(4)}", Table("twice", ["a", "A"], [])
    with pytest.raises(ItemError, match="table twice"):
        ServerDatabase([twice], server=server, timeout_s=30.0, name=name)
    assert left(server, name) == []


def test_what_a_dead_process_left_is_swept_and_what_lives_is_not(
    server: Server, database: ServerDatabase
) -> None:
    name = PREFIX + secrets.token_hex(8)
    asked(server, f"create database {name}")
    asked(server, f"create user '{name}'@'%'")
    assert len(left(server, name)) == 2
    assert name in server.sweep()
    assert left(server, name) == []
    assert database.execute("select count(*) from `The Staff`") == "[(3,)]"


def test_a_database_that_is_no_episodes_is_not_swept(server: Server) -> None:
    name = f"{PREFIX}results_{secrets.token_hex(4)}"
    asked(server, f"create database {name}")
    try:
        assert name not in server.sweep()
        assert left(server, name) == [name]
    finally:
        asked(server, f"drop database {name}")


def test_an_account_that_may_not_sweep_is_an_environment_failure(
    server: Server, database: ServerDatabase
) -> None:
    agents = Server(server.host, server.port, database._name, database._password)
    with pytest.raises(EnvironmentFailure, match="denied"):
        agents.sweep()


def test_a_table_that_a_transaction_holds_stops_no_sweep(server: Server) -> None:
    """What is prepared outlives its connection."""
    server = replace(server, locked_s=1)
    database = ServerDatabase([TABLE], server=server, timeout_s=1.0)
    mark = f"'{secrets.token_hex(4)}'"
    for sql in ("start {}", "end {}", "prepare {}"):
        assert database.execute(f"xa {sql.format(mark)}") == "[]"
        database.execute("delete from `The Staff`")
    try:
        database.close()
        assert database._name not in server.sweep()
        assert left(server, database._name)
    finally:
        asked(server, f"xa rollback {mark}")

    def is_swept() -> bool:
        """Also by a statement that the server still runs, or by another process that tests."""
        server.sweep()
        return not left(server, database._name)

    eventually(is_swept, within_s=60, text=lambda: str(left(server, database._name)))


def test_a_server_that_is_not_there_is_an_environment_failure() -> None:
    nobody = Server.at("mysql://root@127.0.0.1:1/", "")
    with pytest.raises(EnvironmentFailure, match=r"127\.0\.0\.1:1"):
        ServerDatabase([TABLE], server=nobody, timeout_s=1.0)


def test_a_lost_server_fails_the_episode(server: Server) -> None:
    database = ServerDatabase([TABLE], server=server, timeout_s=30.0)
    assert database._agent is not None
    assert database._admin is not None
    for connection in (database._agent, database._admin):
        with suppress(Exception):
            asked(server, f"kill {connection.thread_id()}")
    with pytest.raises(EnvironmentFailure):
        database.execute("select 1")
    database.close()
    server.sweep()
    assert left(server, database._name) == []


@pytest.mark.parametrize(
    "url",
    [
        *("", "postgres://h/", "mysql://", "mysql://u:secret@h/", "mysql://h:x"),
        *("mysql://u:secret/x@h/", "mysql://u:secret#x@h/", "mysql://u:secret[x@h/"),
    ],
)
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="server") as refused:
        Server.at(url, "")
    assert "secret" not in f"{refused.value} {refused.value.hint} {refused.value.__cause__}"


def test_a_refused_address_says_how_one_looks_and_where_its_password_goes() -> None:
    with pytest.raises(ConfigError, match=r"is not mysql://user@host:port/$") as caught:
        Server.at("foo", "")
    assert caught.value.hint == "use a URL such as mysql://root@127.0.0.1:3306/"
    with pytest.raises(ConfigError, match="contains a password") as caught:
        Server.at("mysql://u:secret@h/", "")
    assert "password_env" in caught.value.hint


def test_a_password_whose_variable_is_not_set_is_refused(mariadb_url: str) -> None:
    source = registry.source(
        "dbbench", {"items": 1, "server": mariadb_url, "password_env": "AGENTRL_NO_SUCH"}
    )
    with pytest.raises(ConfigError, match="AGENTRL_NO_SUCH is not set"):
        source.make(source.items("train")[0])


def test_experts_solve_generated_items_at_once(mariadb_url: str) -> None:
    """Ten episodes on five threads."""
    source = registry.source("dbbench", {"items": 10, "difficulty": "hard", "server": mariadb_url})
    rewards: list[float] = []

    def played(first: int) -> None:
        for item in source.items("train")[first : first + 2]:
            environment, expert = source.make(item), source.expert(item, seed=0)
            with closing(environment):
                outcome = Outcome(environment.start().messages)
                while not outcome.done:
                    call = expert.act(outcome.messages)
                    outcome = environment.call([call] if isinstance(call, ToolCall) else call)
                rewards.append(outcome.reward)

    source.items("train")
    threads = [threading.Thread(target=played, args=(first,)) for first in range(0, 10, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == [1.0] * 10
