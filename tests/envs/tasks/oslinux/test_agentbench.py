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
from agentrl.envs.tasks.oslinux.source import OsSource

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
    for path, row in zip(SPLITS.values(), (INLINED, OWN), strict=True):
        (tmp_path / path).write_text(json.dumps(row) + "\n")
    return tmp_path


def test_both_shapes_are_the_same_problem(folder: Path) -> None:
    source = OsSource({"origin": "agentbench", "data": str(folder)})
    assert source.splits == ("train", "dev")
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
