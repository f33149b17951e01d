"""SQLite's MySQL dialect against MariaDB, statement by statement."""

from random import Random

import pytest
from mysql_differential import CHANGES, QUERIES, compare, filled, kind_of

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.datasets import locate
from agentrl.envs.tasks.dbbench import datasets
from agentrl.envs.tasks.dbbench.databases.server import Server
from agentrl.envs.tasks.dbbench.databases.server_database import ServerDatabase
from agentrl.envs.tasks.dbbench.databases.sqlite import SqliteDatabase
from agentrl.envs.tasks.dbbench.databases.translate import MysqlDatabase
from agentrl.envs.tasks.dbbench.problem import Table

TABLE = Table(
    "Medals '98",
    ["Rank", "Athlete's name", "Date", "Points"],
    [
        ["1", "José Ångström", "August 15, 2000", "1,204.5"],
        ["2", "Ødegård–Łuk", "2 May 2001", "−3"],
        ["2", "josé angstrom", "", "7.25 pts"],
        ["10", 'O\'Neil \\ "Bo"', "1999-12-31", "100%"],
        ["T4", "straße_%", "n/a", "007"],
    ],
)


@pytest.mark.parametrize(
    ("theirs", "ours", "kind"),
    [
        ("[(1,)]", "[(1,)]", ""),
        ("[(Decimal('1.50'), 2)]", "[(1.5, 2.0)]", "type"),
        ("[(datetime.date(2000, 8, 5),)]", "[('2000-08-05',)]", "type"),
        ("[('b',), ('a',)]", "[('a',), ('b',)]", "order"),
        ("[('b',)]", "[('a',)]", "value"),
        ("[('1.0',)]", "[('1',)]", "value"),
    ],
)
def test_differences_have_a_kind(theirs: str, ours: str, kind: str) -> None:
    assert kind_of(theirs, ours) == kind


def test_every_template_fills_over_any_table() -> None:
    narrow = Table("t", ["a"], [["x"]])
    for template in (*QUERIES, *CHANGES):
        for table in (TABLE, narrow):
            assert "{" not in filled(template, table, Random(0))


def test_the_engines_agree_on_a_table_with_everything(mariadb_url: str) -> None:
    server = Server.at(mariadb_url, "")
    seen: list[str] = []
    for seed in range(6):
        counts, differences = compare(
            [TABLE],
            Random(seed),
            lambda table: MysqlDatabase(
                SqliteDatabase([table], timeout_s=5.0, mysql=True), [table]
            ),
            lambda table: ServerDatabase([table], server=server, timeout_s=5.0),
        )
        assert sum(counts.values()) >= len(QUERIES)
        seen += [str(found) for found in differences if found.kind not in ("type", "order")]
    assert seen == []


@pytest.mark.slow
def test_replies_about_tables_of_wikipedia_agree(mariadb_url: str) -> None:
    try:
        root = locate(datasets.WIKITABLEQUESTIONS)
    except ItemError as error:
        pytest.skip(str(error))
    read = datasets.wiki_tables(root / datasets.WIKITABLEQUESTIONS.paths[2])
    names = Random(0).sample([name for name in sorted(read) if read[name]["rows"]], 40)
    tables = [Table(read[n]["name"], read[n]["columns"], read[n]["rows"][:25]) for n in names]
    server = Server.at(mariadb_url, "")
    counts, _ = compare(
        tables,
        Random(0),
        lambda table: MysqlDatabase(SqliteDatabase([table], timeout_s=5.0, mysql=True), [table]),
        lambda table: ServerDatabase([table], server=server, timeout_s=10.0),
    )
    assert counts["same"] + counts["type"] >= 0.99 * sum(counts.values())
