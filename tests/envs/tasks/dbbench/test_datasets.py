"""The importers: files of invented text, and counts and golds of the real ones where they are."""

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.core.errors import ItemError
from agentrl.envs import registry
from agentrl.envs.contract import Item, TaskSource, ToolCall
from agentrl.envs.tasks.datasets import locate
from agentrl.envs.tasks.dbbench import datasets
from agentrl.envs.tasks.dbbench.databases.functions import key
from agentrl.envs.tasks.dbbench.datasets import column_names, table_rows, unescape
from agentrl.envs.tasks.dbbench.environment import COMMIT, EXECUTE, full_prompt
from agentrl.envs.tasks.dbbench.problem import Problem
from agentrl.envs.tasks.options import read

LINE: dict[str, Any] = {
    "description": "Add Kim.",
    "label": ["INSERT INTO `Staff` (`name`) VALUES ('Kim')"],
    "type": ["INSERT"],
    "table": {
        "table_name": "Staff",
        "table_info": {"columns": [{"name": "name"}, {"name": ""}], "rows": [["Bob", 7]]},
    },
    "add_description": "One table.",
    "answer_md5": "[('0123456789abcdef0123456789abcdef',)]",
    "whatever": 1,
}
QUESTIONS = (
    "id\tutterance\tcontext\ttargetValue\n"
    "nt-0\twho?\tcsv/9-csv/1.csv\tKim \\p Bob|Eva\n"
    "nt-1\twho?\tcsv/9-csv/1.csv\trepeated\n"
    "nt-2\twhere?\tcsv/9-csv/none.csv\tOslo\n"
    "nt-3\twhen?\tcsv/9-csv/1.csv\t\n"
)
CSV = '"Name","Name","",""\n"a \\"b\\"","1,2","back \\\\ slash","x"\n"short"\n'


@pytest.fixture
def invented(tmp_path: Path) -> Path:
    folder = tmp_path / "dbbench" / "wikitablequestions"
    folder.mkdir(parents=True)
    (tmp_path / "dbbench" / "agentbench_dev.jsonl").write_text(json.dumps(LINE) + "\n")
    (folder / "training.tsv").write_text(QUESTIONS)
    (folder / "pristine-seen-tables.tsv").write_text(
        QUESTIONS.replace("nt-", "ns-").replace(
            "when?\tcsv/9-csv/1.csv\t", "how?\tcsv/9-csv/1.csv\t3"
        )
    )
    (tmp_path / "1.csv").write_text(CSV)
    with tarfile.open(folder / "csv.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "1.csv", "csv/9-csv/1.csv")
    return tmp_path


def source(origin: str, folder: Path) -> TaskSource:
    return registry.source("dbbench", {"origin": origin, "data": str(folder)})


def test_the_benchmarks_standard_split_is_read_as_it_is_shipped(invented: Path) -> None:
    benchmark = source("agentbench", invented)
    with pytest.raises(ItemError, match=r"agentbench-standard: .* has no dbbench/agentbench_stand"):
        benchmark.items("standard")
    assert len(benchmark.items("dev")) == 1
    shipped = invented / "agentbench" / "dbbench" / "standard.jsonl"
    shipped.parent.mkdir(parents=True)
    lines = f"\ufeff{json.dumps(LINE)}\n\n{json.dumps(LINE)}\n\n"
    for text in (json.dumps([LINE, LINE]), lines):
        shipped.write_text(text)
        items = source("agentbench", invented).items("standard")
        assert [item.item_id for item in items] == ["standard-0", "standard-1"]


def test_what_a_line_leaves_out_or_has_as_null_is_optional(invented: Path) -> None:
    query = {name: LINE[name] for name in ("description", "table")} | {"type": ["other"]}
    query |= {"label": [3, "x"], "add_description": None, "evidence": None, "answer_md5": None}
    change = {name: LINE[name] for name in ("description", "table", "type", "answer_md5")}
    path = invented / "dbbench" / "agentbench_dev.jsonl"
    path.write_text(json.dumps(query, indent=1))  # a file of one object
    (item,) = source("agentbench", invented).items("dev")
    assert read(item, Problem).answers == ["3", "x"]
    path.write_text(json.dumps([query, change]))
    item = source("agentbench", invented).items("dev")[1]
    problem = read(item, Problem)
    assert (problem.gold_sql, problem.description, len(problem.answer_md5)) == ("", "", 32)


def test_a_line_of_the_benchmark_becomes_an_item(invented: Path) -> None:
    benchmark = source("agentbench", invented)
    assert benchmark.splits == ("dev", "standard")
    (item,) = benchmark.items("dev")
    problem = read(item, Problem)
    assert item.item_id == "dev-0"
    assert problem.modifies
    assert problem.answer_md5 == "0123456789abcdef0123456789abcdef"
    assert problem.gold_sql == LINE["label"][0]
    assert problem.tables[0].columns == ["name", "column 2"]
    assert problem.tables[0].rows == [["Bob", "7"]]
    assert full_prompt(problem) == (
        "Additional table information about the question: One table.\nQuestion: Add Kim.\n"
    )


def test_a_query_of_the_benchmark_has_its_label_as_answers(invented: Path) -> None:
    line = LINE | {"type": ["counting"], "label": ["3", "4"]}
    (invented / "dbbench" / "agentbench_dev.jsonl").write_text(json.dumps(line))
    (item,) = source("agentbench", invented).items("dev")
    problem = read(item, Problem)
    assert not problem.modifies
    assert (problem.answers, problem.answer_md5, problem.gold_sql) == (["3", "4"], "", "")


@pytest.mark.parametrize("line", ["{}", "no json", '{"type": []}', json.dumps(LINE | {"type": []})])
def test_a_line_that_is_not_understood_is_named(invented: Path, line: str) -> None:
    (invented / "dbbench" / "agentbench_dev.jsonl").write_text(json.dumps(LINE) + "\n" + line)
    with pytest.raises(ItemError, match=r"agentbench_dev\.jsonl:2: "):
        source("agentbench", invented).items("dev")


def test_questions_over_wikipedia_become_items_of_their_split(invented: Path) -> None:
    wiki = source("wikitablequestions", invented)
    assert wiki.splits == ("train", "test")
    (item,) = wiki.items("train")
    problem = read(item, Problem)
    assert item.item_id == "nt-0"
    assert problem.answers == ["Kim | Bob", "Eva"]
    assert problem.tables[0].name == "table_9_1"
    assert problem.tables[0].columns == ["Name", "Name 2", "column", "column 2"]
    assert problem.tables[0].rows == [
        ['a "b"', "1,2", "back \\ slash", "x"],
        ["short", "", "", ""],
    ]


def test_what_train_asks_is_not_asked_in_test(invented: Path) -> None:
    assert [item.item_id for item in source("wikitablequestions", invented).items("test")] == [
        "ns-3"
    ]


def test_a_split_that_is_none_is_refused(invented: Path) -> None:
    with pytest.raises(ItemError, match="unknown split train"):
        source("agentbench", invented).items("train")


def test_without_the_files_the_error_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(ItemError, match=r"agentbench_dev\.jsonl"):
        source("agentbench", tmp_path).items("dev")


def test_escapes_of_fields_and_cells() -> None:
    assert unescape("a\\pb\\n\\\\p\\x\\") == "a|b\n\\p\\x\\"
    assert table_rows('"a \\"b\\"","\\\\","c\nd"\n') == [['a "b"', "\\", "c\nd"]]


@given(st.lists(st.text(max_size=70), max_size=8))
def test_names_of_columns_are_proper_and_differ(header: list[str]) -> None:
    names = column_names(header)
    assert len(names) == len(header) == len({key(name) for name in names})
    assert all(0 < len(name) <= 64 and name == name.strip() for name in names)


@pytest.fixture
def real() -> str:
    """The folder of real data."""
    for dataset in datasets.DATASETS:
        try:
            locate(dataset)
        except ItemError as error:
            pytest.skip(str(error))
    return os.environ["AGENTRL_DATA"]


def is_gold_rewarded(source: TaskSource, item: Item) -> bool:
    """Is the item's gold rewarded: its SQL where it changes the table, else its answers?"""
    problem = read(item, Problem)
    environment = source.make(item)
    try:
        environment.start()
        if problem.modifies:
            environment.call([ToolCall(EXECUTE, {"query": problem.gold_sql})])
        answers = list(problem.answers) or ["done"]
        return environment.call([ToolCall(COMMIT, {"answers": answers})]).reward == 1.0
    finally:
        environment.close()


def test_the_gold_of_every_item_of_the_benchmark_is_rewarded_on_sqlite(real: str) -> None:
    benchmark = registry.source("dbbench", {"origin": "agentbench"})
    items = benchmark.items("dev")
    kinds = [item.content.get("kind") for item in items]
    assert (kinds.count("INSERT"), kinds.count("UPDATE"), len(items)) == (20, 20, 60)
    assert [item.item_id for item in items if not is_gold_rewarded(benchmark, item)] == []


@pytest.mark.slow
def test_the_gold_of_every_item_of_the_benchmark_is_rewarded_on_mariadb(
    real: str, mariadb_url: str
) -> None:
    benchmark = registry.source("dbbench", {"origin": "agentbench", "server": mariadb_url})
    items = benchmark.items("dev")
    assert [item.item_id for item in items if not is_gold_rewarded(benchmark, item)] == []


@pytest.mark.slow
def test_every_table_of_wikipedia_opens_in_sqlite(real: str) -> None:
    wiki = registry.source("dbbench", {"origin": "wikitablequestions"})
    counts = [len(wiki.items(split)) for split in wiki.splits]
    assert counts == [14_152, 3_536]
    seen: set[str] = set()
    for split in wiki.splits:
        for item in wiki.items(split):
            name = item.content["tables"][0]["name"]
            if name not in seen:
                seen.add(name)
                environment = wiki.make(item)
                environment.start()
                environment.close()
    assert len(seen) > 1_000
