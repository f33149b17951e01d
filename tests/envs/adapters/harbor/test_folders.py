"""How task folders become items, and which are refused."""

import io
import tarfile
from pathlib import Path

import pytest
from harbor_tasks import Written

from agentrl.core.errors import ConfigError, ItemError
from agentrl.envs.adapters.harbor.folder import load
from agentrl.envs.adapters.harbor.task_source import HarborSource


def test_splits_are_patterns_and_a_folder_may_be_one_task(written: Written) -> None:
    for name in ("train/b", "train/a", "test/c", "test/d"):
        root = written(name)
    options = {"splits": {"train": ["train/*"], "test": ["test/*"]}, "exclude": ["*/d"]}
    source = HarborSource("bench", str(root), options)
    found = {split: [item.item_id for item in source.items(split)] for split in source.splits}
    assert found == {"train": ["train/a", "train/b"], "test": ["test/c"]}
    (item,) = HarborSource("bench", str(root / "train" / "a"), {}).items("train")
    assert item.item_id == "a"
    with pytest.raises(ItemError, match="unknown split tset; did you mean test"):
        source.items("tset")


def test_an_item_is_of_the_same_files_on_every_machine(written: Written) -> None:
    root = written()
    (item,) = HarborSource("bench", str(root), {}).items("train")
    with pytest.raises(ConfigError, match="bench runs in containers"):
        HarborSource("bench", str(root), {}).make(item)
    written(**{"tests/test.sh": "true"})
    with pytest.raises(ItemError, match="has other files than when the item was made"):
        HarborSource("bench", str(root), {}).make(item)


@pytest.mark.parametrize(
    ("changed", "error", "hint"),
    [
        ({"task.toml": None}, "count: it has no task.toml", "add it"),
        ({"instruction.md": None}, "count: it has no instruction.md", "add it"),
        ({"tests/test.sh": None}, "count: it has no tests/test.sh", "add one that writes"),
        ({"environment/Dockerfile": None}, "it has no environment/Dockerfile", "docker_image"),
        ({"task.toml": "[agent"}, "count: task.toml: Expected", "correct task.toml"),
        (
            {"task.toml": "[agent]\ntimeout_sec = 'long'"},
            "task.toml: agent.timeout_sec: Expected `float",
            "correct",
        ),
        (
            {"task.toml": "[[steps]]\nname = 'a'"},
            r"does not support \[\[steps\]\]",
            "leave out",
        ),
        ({"task.toml": "[environment]\ngpus = 2"}, "not support environment.gpus", "leave out"),
        ({"task.toml": "[agent]\nuser = 'eva'"}, "not support agent.user = 'eva'", "leave out"),
        (
            {"environment/docker-compose.yaml": ""},
            "not support environment/docker-compose",
            "leave out",
        ),
        (
            {"task.toml": "[verifier]\nenvironment_mode = 'separate'"},
            "an environment of the verifier's own",
            'options.exclude = ["count"]',
        ),
    ],
)
def test_a_broken_folder_is_one_error(
    written: Written, changed: dict[str, str | None], error: str, hint: str
) -> None:
    root = written(**changed)
    with pytest.raises(ItemError, match=error) as told:
        HarborSource("bench", str(root), {}).items("train")
    assert hint in told.value.hint


def test_all_broken_folders_are_named_at_once(written: Written) -> None:
    written("a", **{"tests/test.sh": None})
    written("b")
    root = written("c", **{"task.toml": "[environment]\ngpus = 1"})
    with pytest.raises(ItemError, match=r"a: it has no tests/test\.sh \(and 1 more: c\)") as told:
        HarborSource("bench", str(root), {}).items("train")
    assert 'options.exclude = ["a","c"]' in told.value.hint
    assert len(HarborSource("bench", str(root), {"exclude": ["a", "c"]}).items("train")) == 1


def test_no_folder_and_no_tasks_and_no_solution_are_one_error_each(
    written: Written, tmp_path: Path
) -> None:
    with pytest.raises(ItemError, match="nowhere: no such folder"):
        HarborSource("bench", f"{tmp_path}/nowhere", {}).items("train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ItemError, match="empty: no task folder in it"):
        HarborSource("bench", f"{tmp_path}/empty", {}).items("train")
    source = HarborSource("bench", str(written(**{"solution/solve.sh": None})), {})
    with pytest.raises(ItemError, match=r"the task has no solution/solve\.sh"):
        source.expert(source.items("train")[0], seed=0)


def test_a_variable_that_nobody_gives_is_one_error(written: Written) -> None:
    root = written(**{"task.toml": "[solution.env]\nKEY = '${HOME}'"})
    source = HarborSource("bench", str(root), {})
    with pytest.raises(ItemError, match=r"solution\.env needs \$\{HOME\}") as told:
        source.expert(source.items("train")[0], seed=0)
    assert "tasks.bench.options.env.HOME" in told.value.hint


def test_a_link_out_of_the_task_is_not_followed(written: Written, tmp_path: Path) -> None:
    root = written()
    (tmp_path / "secret").write_text("x")
    (root / "count" / "tests" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ItemError, match="tests/link is a link to a place outside"):
        HarborSource("bench", str(root), {}).items("train")


def test_what_can_be_executed_stays_so_in_the_container(written: Written) -> None:
    path = written(**{"tests/run": "#!/bin/sh\n", "tests/data": "1"}) / "count"
    (path / "tests" / "run").chmod(0o755)
    packed = load("count", path, build=False).archive("tests")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        modes = {entry.name: entry.mode for entry in archive}
    assert [modes[name] for name in ("data", "run", "test.sh")] == [0o644, 0o755, 0o755]
