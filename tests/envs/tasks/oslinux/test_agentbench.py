"""Items of the benchmark, in its own shape and with the scripts inlined."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.oslinux.agentbench import SPLITS, content_of
from agentrl.envs.tasks.oslinux.evaluation import early_steps
from agentrl.envs.tasks.oslinux.problem import Problem, read
from agentrl.envs.tasks.oslinux.task_source import OsSource

OWN = {
    "description": "How many?",
    "create": {"local": "packages", "init": {"file": "init/make.sh"}},
    "start": "sleep 9 &",
    "evaluation": {
        "check": [None, {"language": "python", "file": "check/integer-match.py"}],
        "example": {"code": "ls | wc -l"},
    },
}
INLINED = {
    "id": "train#0",
    "description": "How many?",
    "image": "packages",
    "init": [{"language": "bash", "code": "touch a\n"}],
    "start": {"language": "bash", "code": "sleep 9 &"},
    "match": None,
    "check": [{"kind": "run_example"}, {"kind": "matcher", "name": "integer-match"}],
    "example": {"language": "bash", "code": "ls | wc -l"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with one item in each split."""
    scripts = tmp_path / "os/scripts/init"
    scripts.mkdir(parents=True)
    (scripts / "make.sh").write_text("touch a\n")
    for path, row in zip(SPLITS.values(), (INLINED, OWN, OWN), strict=True):
        (tmp_path / path).write_text(json.dumps(row) + "\n")
    return tmp_path


def test_both_shapes_are_the_same_problem(folder: Path) -> None:
    source = OsSource({"origin": "agentbench", "data": str(folder)})
    assert source.splits == ("train", "dev", "standard")
    (train,), (dev,) = source.items("train"), source.items("dev")
    assert (train.item_id, dev.item_id) == ("train#0", "dev#0")
    for item in (train, dev):
        content = dict(item.content)
        assert content.pop("init") in (
            [{"code": "touch a\n"}],
            [{"language": "bash", "code": "touch a\n"}],
        )
        assert content["image"] == "packages"
        assert content["check"] == [{"example": True}, {"matcher": "integer-match"}]
        assert content["example"]["code"] == "ls | wc -l"
        assert content["start"]["code"] == "sleep 9 &"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A data folder with the repository's own folder, two items in each file."""
    top = tmp_path / "agentbench/os_interaction"
    for folder in ("dev", *map(str, range(1, 8))):
        scripts = top / "scripts" / folder / "init"
        scripts.mkdir(parents=True)
        (scripts / "make.sh").write_text(f"touch {folder}\n")
    files = ["data/dev.json", "train_0317/training.json", "data/4/b.json", "data/4/a.json"]
    for file in (*files, *(f"data/{folder}/x.json" for folder in (1, 2, 3, 5, 6, 7))):
        (top / file).parent.mkdir(parents=True, exist_ok=True)
        (top / file).write_text(json.dumps([OWN, OWN], indent=1))
    return tmp_path


def test_the_repositorys_own_folder_is_read_as_it_is(tree: Path) -> None:
    source = OsSource({"origin": "agentbench", "data": str(tree)})
    made = {each.item_id: each.content["init"][0]["code"] for each in source.items("standard")}
    assert [*made][5:11] == [
        "standard-3-x#1", "standard-4-a#0", "standard-4-a#1",
        "standard-4-b#0", "standard-4-b#1", "standard-5-x#0",
    ]  # fmt: skip
    assert len(made) == 16
    assert (made["standard-1-x#0"], made["standard-7-x#1"]) == ("touch 1\n", "touch 7\n")
    for split, script in (("dev", "touch dev\n"), ("train", "touch 7\n")):
        assert [each.content["init"][0]["code"] for each in source.items(split)] == [script] * 2


def test_a_missing_file_stops_only_its_split(tree: Path) -> None:
    (tree / "agentbench/os_interaction/data/3/x.json").unlink()
    (tree / "agentbench/os_interaction/train_0317/training.json").unlink()
    source = OsSource({"origin": "agentbench", "data": str(tree)})
    with pytest.raises(ItemError, match="data/3 has no JSON file"):
        source.items("standard")
    with pytest.raises(ItemError, match=r"has no os/os_train\.jsonl"):
        source.items("train")
    assert len(source.items("dev")) == 2


@pytest.mark.parametrize(
    ("match", "read"),
    [
        ("7", {"answer": "7"}),
        ({"regex": "^7", "strip": False}, {"regex": "^7", "strip": False}),
    ],
)
def test_a_match_is_text_or_more(match: Any, read: Any) -> None:
    row = {"description": "?", "evaluation": {"match": match}}
    assert content_of(row, Path("nowhere"))["match"] == read


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "truncated"),
        ("[]", "ValidationError"),
        ({"evaluation": {"match": "7"}}, "description"),
        ({"description": "?", "evaluation": {}}, "check"),
        ({"description": "?", "evaluation": {"check": {"file": "none.sh"}}}, "no script none.sh"),
        ({"description": "?", "evaluation": {"check": {"file": "../../x"}}}, "no script ../../x"),
        ({"description": "?", "evaluation": {"check": [3]}}, "AttributeError"),
    ],
)
def test_a_line_that_is_not_understood_is_named(folder: Path, row: Any, why: str) -> None:
    (folder / "x").write_text("")
    text = row if isinstance(row, str) else json.dumps(row)
    (folder / SPLITS["train"]).write_text(json.dumps(INLINED) + "\n" + text)
    with pytest.raises(ItemError, match=r"os_train\.jsonl:2: ") as raised:
        OsSource({"origin": "agentbench", "data": str(folder)}).items("train")
    assert why in str(raised.value)


def test_missing_files_and_splits_are_named(tmp_path: Path) -> None:
    source = OsSource({"origin": "agentbench", "data": str(tmp_path)})
    with pytest.raises(ItemError, match=r"has no os/os_train\.jsonl"):
        source.items("train")
    with pytest.raises(ItemError, match="unknown split test"):
        source.items("test")


@pytest.mark.parametrize(
    ("check", "places"),
    [
        ([{"example": True}, {"matcher": "in"}], [0]),
        ([{"script": {"code": "cat x"}}, {"matcher": "in"}], [0]),
        ([{"script": {"code": "awk '{print $1}' x"}}, {"matcher": "in"}], []),
        ([{"script": {"code": "import sys; sys.argv"}}, {"matcher": "in"}], []),
        ([{"script": {"code": "cat x"}}], []),
        ([{"example": True}, {"script": {"code": "cat x"}}], [0]),
        ([{"matcher": "in"}, {"script": {"code": "cat x"}}], []),
    ],
)
def test_early_steps_are_examples_and_scripts_before_a_matcher_that_read_no_argument(
    check: list[dict[str, Any]], places: list[int]
) -> None:
    problem = msgspec.convert({"description": "?", "check": check}, Problem)
    assert list(early_steps(problem)) == places


def test_the_given_data_is_read_whole() -> None:
    source = OsSource({"origin": "agentbench"})
    try:
        train, dev = source.items("train"), source.items("dev")
    except ItemError as error:
        pytest.skip(str(error))
    assert (len(train), len(dev)) == (1000, 26)
    assert len({item.item_id for item in (*train, *dev)}) == 1026
    for item in (*train, *dev):
        assert read(item).description
