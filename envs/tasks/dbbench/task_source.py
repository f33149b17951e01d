"""The task source: items, their environments, and the database of an episode."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from random import Random
from typing import Annotated, Any, Literal

from msgspec import Meta

from agentrl.core.errors import ConfigError, ItemError
from agentrl.envs.contract import Environment, Expert, Item, Recovery
from agentrl.envs.sandbox.sandbox import Sandboxes, Spec
from agentrl.envs.tasks import generated, options
from agentrl.envs.tasks.dbbench import datasets
from agentrl.envs.tasks.dbbench.databases.container import ContainedDatabase, program
from agentrl.envs.tasks.dbbench.databases.sqlite import SqliteDatabase
from agentrl.envs.tasks.dbbench.environment import DbbenchEnvironment
from agentrl.envs.tasks.dbbench.expert import DbbenchExpert
from agentrl.envs.tasks.dbbench.generate import draw
from agentrl.envs.tasks.dbbench.problem import Database, OpenDatabase, Problem, Table
from agentrl.envs.tasks.dbbench.wikitable_questions import Tables

HINT = "run `pip install 'agentrl-system[tasks]'`"


class Options(options.Generated, frozen=True, forbid_unknown_fields=True):
    """`statement_timeout_s`: seconds of wall clock for one statement. `careless`: share of expert
    episodes that leave out the SQL's condition.

    `origin`: of the items; `wikitables`: generated over WikiTableQuestions' tables. `data`: the
    folder of datasets, empty for AGENTRL_DATA. `container`: statements run in a sandbox, not in the
    process that serves the episode. `dialect`: what SQLite understands; empty for sqlite where
    items are generated, else mysql. `server`: of MySQL or MariaDB, `mysql://user@host:port/`,
    instead of SQLite; `password_env`: the variable that holds its password.
    """

    origin: Literal["generated", "agentbench", "wikitablequestions", "wikitables"] = "generated"
    data: str = ""
    container: bool = False
    statement_timeout_s: Annotated[float, Meta(gt=0)] = 60.0
    careless: Annotated[float, Meta(ge=0, le=1)] = 0.0
    dialect: Literal["", "sqlite", "mysql"] = ""
    server: str = ""
    password_env: str = ""

    @property
    def mysql(self) -> bool:
        """Return whether SQLite is spoken to in MySQL's dialect."""
        return self.dialect == "mysql" or (not self.dialect and self.origin != "generated")


class DbbenchSource(generated.SplitSource):
    """A TaskSource of generated items or a dataset's, on SQLite or a server."""

    name = "dbbench"
    max_turns = 15
    recovery: Recovery = "replayable"

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._options = options.parse(self.name, Options, given)
        origin = self._options.origin
        if names := datasets.SPLITS.get(origin):
            load = partial(datasets.items, origin, given=self._options.data)
            self._splits = generated.LoadedSplits(self.name, names, load)
        else:
            over_tables = origin == "wikitables"
            draw_item = self._draw if over_tables else partial(draw, self._options.difficulty)
            self._splits = generated.Splits(self.name, self._options, draw_item)
        self._sandboxes: Sandboxes | None = None
        self._server: OpenDatabase | None = None

    def make(self, item: Item) -> Environment:
        return DbbenchEnvironment(_problem(item), self._options.style, self.open_database())

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        problem = _problem(item)
        if not (problem.gold_sql or problem.answers):
            raise ItemError(f"item {item.item_id}: neither SQL nor answers to demonstrate")
        return DbbenchExpert(problem, seed=seed, noise=noise, careless=self._options.careless)

    def _draw(self, random: Random, number: int) -> generated.Drawn:
        return self._tables.draw(random, number)

    @cached_property
    def _tables(self) -> Tables:
        return Tables(datasets.tables(self._options.data))

    def specs(self, image: str) -> Sequence[Spec]:
        return [Spec(image, program())] if self._options.container else []

    def contain(self, pools: Mapping[str, Sandboxes]) -> None:
        self._sandboxes = pools[""]

    def open_database(self) -> OpenDatabase:
        """Return an episode's opener. Raises ConfigError, EnvironmentFailure."""
        chosen = self._options
        if chosen.server:
            if chosen.container:
                raise ConfigError("dbbench: container = true cannot be combined with a server")
            return self._on_server()
        open_sqlite: OpenDatabase
        if not chosen.container:
            open_sqlite = partial(
                SqliteDatabase, timeout_s=chosen.statement_timeout_s, mysql=chosen.mysql
            )
        elif self._sandboxes is None:
            raise ConfigError(
                "dbbench: container = true needs an env server",
                hint="set envs.url to an env server",
            )
        else:
            open_sqlite = partial(
                ContainedDatabase,
                sandboxes=self._sandboxes,
                timeout_s=chosen.statement_timeout_s,
                mysql=chosen.mysql,
            )
        return _in_mysql(open_sqlite) if chosen.mysql else open_sqlite

    def _on_server(self) -> OpenDatabase:
        """Open the server; first, once, drop what dead processes left there."""
        if self._server is None:
            try:
                from agentrl.envs.tasks.dbbench.databases.server import Server
                from agentrl.envs.tasks.dbbench.databases.server_database import ServerDatabase
            except ImportError as error:
                raise ConfigError("dbbench: a server needs pymysql", hint=HINT) from error
            variable = self._options.password_env
            if variable and variable not in os.environ:
                raise ConfigError(f"dbbench: password_env: {variable} is not set")
            password = os.environ[variable] if variable else ""
            server = Server.at(self._options.server, password)
            server.sweep()
            self._server = partial(
                ServerDatabase, server=server, timeout_s=self._options.statement_timeout_s
            )
        return self._server


def _in_mysql(open_sqlite: OpenDatabase) -> OpenDatabase:
    try:
        from agentrl.envs.tasks.dbbench.databases.translate import MysqlDatabase
    except ImportError as error:
        raise ConfigError("dbbench: dialect mysql needs sqlglot", hint=HINT) from error

    def opened(tables: Sequence[Table]) -> Database:
        return MysqlDatabase(open_sqlite(tables), tables)

    return opened


def _problem(item: Item) -> Problem:
    problem = options.read(item, Problem)
    if not problem.tables:
        raise ItemError(f"item {item.item_id} has no table")
    if problem.modifies and not (problem.answer_md5 or problem.gold_sql):
        raise ItemError(f"item {item.item_id}: a change has neither a hash nor SQL")
    return problem
