"""Adapters by name: `source = "ADAPTER:ARGUMENT"` of any task."""

import json
import subprocess
import sys

import pytest

from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ConfigError, ItemError
from agentrl.envs import registry
from agentrl.envs.tasks.check import Settings
from agentrl.envs.tasks.task_measurements import all_figures
from agentrl.ops.configuration.configs import check_tasks
from agentrl.ops.tasks.show import list_tasks


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ("gymnasum:CartPole-v1", "sums: .*unknown adapter gymnasum; did you mean gymnasium"),
        ("zzz:x", "known: gymnasium, harbor, mcp, openenv, reasoning-gym, textarena, verifiers"),
        ("gymnasium", "sums: source gymnasium: nothing follows the adapter's name"),
        ("gymnasium:", "nothing follows the adapter's name"),
    ],
)
def test_a_source_that_is_none_is_one_error(named: str, error: str) -> None:
    with pytest.raises(ItemError, match=error):
        registry.source("sums", {}, named)
    with pytest.raises(ConfigError, match=r"^tasks\.sums: source "):
        check_tasks(Config(tasks={"sums": Task(source=named)}))


def test_a_task_of_ours_is_not_given_another_source() -> None:
    with pytest.raises(ItemError, match="a built-in task cannot have the source"):
        registry.source("dbbench", {}, "gymnasium:CartPole-v1")


WITHOUT = """
import importlib.abc, sys

PACKAGES = {"gymnasium", "mcp", "reasoning_gym", "textarena", "websockets"}

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in PACKAGES:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Missing())
from agentrl.core.errors import ItemError
from agentrl.envs import registry

for adapter in registry.ADAPTERS:
    try:
        registry.source("mine", {}, f"{adapter}:x")
    except ItemError as error:
        print(adapter, error, error.hint, sep="|")
"""


def test_an_adapter_whose_package_is_missing_names_the_extra() -> None:
    """In a process that cannot import the packages. The registry needs none of them, harbor has
    none, and verifiers is asked in a Python of its own.
    """
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True
    )
    without = ("harbor", "verifiers")
    rows = [line.split("|") for line in ended.stdout.splitlines()]
    assert [row[0] for row in rows] == [each for each in registry.ADAPTERS if each not in without]
    for adapter, error, hint in rows:
        assert error.startswith(f"mine: source {adapter}:x: No module named")
        assert hint == f"pip install 'agentrl-system[{adapter}]'"


def test_a_source_is_measured_by_its_name_alone() -> None:
    pytest.importorskip("reasoning_gym", reason="needs pip install 'agentrl-system[reasoning-gym]'")
    found = {each.name: each for each in all_figures("reasoning-gym:chain_sum", Settings(limit=20))}
    assert found["items train"].value == "500"
    assert (found["same items test"].value, found["same items test"].ok) == ("100", True)
    assert found["expert test"].value == "100.0% (20/20), reward 1.00"
    assert found["random test"].value.startswith("0.0% (0/20)")
    assert found["recovery test"].value == "20 of 20 episodes repeat"


def test_a_source_without_a_demonstrator_says_so() -> None:
    pytest.importorskip("gymnasium", reason="needs pip install 'agentrl-system[gymnasium]'")
    found = {each.name: each for each in all_figures("gymnasium:CartPole-v1", Settings(limit=5))}
    assert found["expert"].ok is None
    assert "Gymnasium has no demonstrator" in found["expert"].value
    assert found["random test"].value.startswith("0.0% (0/5), reward ")
    assert (found["recovery test"].value, found["recovery test"].ok) == (
        "5 of 5 episodes repeat",
        True,
    )


def test_the_list_of_tasks_names_the_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    list_tasks(as_json=False)
    assert (
        "gymnasium:…, harbor:…, mcp:…, openenv:…, reasoning-gym:…, textarena:…, verifiers:…"
        in capsys.readouterr().out
    )
    list_tasks(as_json=True)
    assert {each["task"] for each in json.loads(capsys.readouterr().out)} == {*registry.names()}
