"""Tasks by name."""

import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agentrl.core.errors import ItemError
from agentrl.envs import registry


@pytest.mark.parametrize("task", sorted(registry.TASKS))
def test_every_listed_task_has_a_source_of_its_name(task: str) -> None:
    source = registry.source(task, {"items": 3, "test_items": 2})
    assert source.name == task
    assert source.max_turns > 0
    assert [len(source.items(split)) for split in source.splits] == [3, 2]


def test_an_unknown_task_names_the_nearest_known_one() -> None:
    with pytest.raises(ItemError, match="unknown task dbbenhc; did you mean dbbench"):
        registry.source("dbbenhc", {})


def test_an_unknown_task_that_is_like_none_lists_them_all() -> None:
    with pytest.raises(ItemError, match="known: alfworld, bfcl, dbbench"):
        registry.source("zzz", {})


def test_a_source_in_place_of_a_task_is_named_once() -> None:
    with pytest.raises(ItemError, match=r"^gymnasum:X: unknown adapter gymnasum; did you mean"):
        registry.source("gymnasum:X", {})


@pytest.mark.parametrize("task", sorted(registry.TASKS))
def test_an_unknown_option_names_the_nearest_known_one(task: str) -> None:
    with pytest.raises(ItemError, match=f"{task}: unknown option difficult; did you mean diff"):
        registry.source(task, {"difficult": "easy"})


@pytest.mark.parametrize("value", ["gigantic", 3, None])
def test_an_option_of_a_wrong_value_names_the_option(value: object) -> None:
    with pytest.raises(ItemError, match="dbbench: option difficulty: "):
        registry.source("dbbench", {"difficulty": value})


@pytest.mark.parametrize("task", sorted(registry.TASKS))
def test_an_unknown_split_names_the_nearest_known_one(task: str) -> None:
    with pytest.raises(ItemError, match="unknown split trains; did you mean train"):
        registry.source(task, {}).items("trains")


OUTSIDE = """
from agentrl.envs.tasks.dbbench.task_source import DbbenchSource

def make(options):
    return DbbenchSource(options)
"""


def install(folder: Path, entry: str, name: str = "outside") -> None:
    """A distribution with one entry point, as pip leaves it."""
    folder.joinpath("outside_task.py").write_text(OUTSIDE)
    metadata = folder / "outside-1.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Name: outside\nVersion: 1\n")
    metadata.joinpath("entry_points.txt").write_text(f"[agentrl.tasks]\n{name} = {entry}\n")


def test_what_stands_beside_a_source_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.place("dbbench") == "agentrl.envs.tasks.dbbench.task_source"
    found = registry.beside("dbbench", "scoring")
    assert found is not None
    assert found.__name__ == "agentrl.envs.tasks.dbbench.scoring"
    assert registry.beside("dbbench", "nothing") is None
    install(tmp_path, "outside_task:make")
    monkeypatch.syspath_prepend(str(tmp_path))
    alone = registry.beside("outside", "check")
    assert alone is not None
    assert alone.__name__ == "outside_task"
    assert registry.datasets("outside") == ()
    with pytest.raises(ItemError, match="unknown task outsidee; did you mean outside"):
        registry.beside("outsidee", "check")


@pytest.mark.parametrize("task", sorted(registry.TASKS))
def test_every_task_names_its_own_datasets_once(task: str) -> None:
    found = registry.datasets(task)
    assert {each.task for each in found} == {task}
    assert len({each.name for each in found}) == len(found)
    assert all(path.startswith(f"{task}/") for each in found for path in each.paths)


def test_a_library_that_is_missing_is_named_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "outside_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "check.py").write_text("import no_such_library\n")
    install(tmp_path, "outside_package.source:make")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ItemError, match="task outside: check: No module named") as raised:
        registry.beside("outside", "check")
    assert "agentrl-system[tasks]" in raised.value.hint


def test_a_task_of_another_distribution_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "outside_task:make")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "outside" in registry.names()
    assert len(registry.source("outside", {"items": 2}).items("train")) == 2


def test_an_entry_point_of_a_built_in_name_is_passed_over_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "outside_task:gone", "dbbench")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._warn_of_namesakes.cache_clear()
    with capture_logs() as logs:
        for _ in range(2):
            assert registry.source("dbbench", {"items": 1}).name == "dbbench"
    registry._warn_of_namesakes.cache_clear()
    assert [(each["task"], each["ignored"]) for each in logs] == [("dbbench", "outside_task:gone")]


def test_a_task_that_cannot_be_loaded_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "outside_task:gone")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ItemError, match=r"outside: outside_task:gone: Attr.*'gone'$"):
        registry.source("outside", {})


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def make(:\n", r"SyntaxError: invalid syntax \(faulty_task.py, line 1\)$"),
        ("\nmake = unknown\n", "NameError: .*'unknown'.*, raised at .*faulty_task.py:2$"),
        ("def make(options):\n    return 1 / 0\n", "ZeroDivisionError: .*faulty_task.py:2$"),
        ("import json\njson.loads('{')\n", "JSONDecodeError: .*faulty_task.py:2$"),
    ],
)
def test_whatever_a_users_task_raises_is_one_error_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    install(tmp_path, "faulty_task:make", "faulty")
    (tmp_path / "faulty_task.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "faulty_task", raising=False)
    with pytest.raises(ItemError, match=f"task faulty: faulty_task:make: {said}"):
        registry.source("faulty", {})
