"""The benchmark's own items, and verdicts that equal those of its checker."""

import inspect
import sys
from random import Random
from typing import Any

import pytest

from agentrl.core.errors import ItemError
from agentrl.envs import registry
from agentrl.envs.contract import Item, Message, ToolCall
from agentrl.envs.play import play
from agentrl.envs.tasks import options
from agentrl.envs.tasks.bfcl import datasets
from agentrl.envs.tasks.bfcl.package import CLASSES, class_tools, import_part, load_class
from agentrl.envs.tasks.bfcl.problem import Problem
from agentrl.envs.tasks.bfcl.task_source import BfclSource

CHECKER = "eval_checker.multi_turn_eval.multi_turn_checker"
OFTEN = 20  # every how many items are played
# One request of these needs more steps than the benchmark allows with one call per step.
LONG = {"multi_turn_long_context_38", "multi_turn_long_context_46"}


@pytest.fixture(scope="module")
def source() -> BfclSource:
    return BfclSource({"origin": "v4"})


class RecordingExpert:
    """The source's expert; records its turns in the format of the benchmark's checker."""

    def __init__(self, source: BfclSource, item: Item, *, seed: int, noise: float) -> None:
        self._expert = source.expert(item, seed=seed, noise=noise)
        self.turns: list[list[list[str]]] = [[]]  # of each request the steps, of each its calls

    def act(self, messages: list[Message]) -> ToolCall | str:
        act = self._expert.act(messages)
        if isinstance(act, str):
            self.turns.append([])
        else:
            arguments = ", ".join(f"{name}={value!r}" for name, value in act.arguments.items())
            self.turns[-1].append([f"{act.name}({arguments})"])
        return act


def published_verdict(item: Item, turns: list[list[list[str]]]) -> bool:
    """Run the benchmark's whole checker on an episode. Turns that were not reached are empty."""
    found = options.read(item, Problem)
    entry = {
        "id": item.item_id,
        "initial_config": found.config,
        "involved_classes": found.classes,
    }
    truth = [
        [
            f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})"
            for call in request.truth
        ]
        for request in found.requests
    ]
    turns = [*turns, *([] for _ in truth)][: len(truth)]
    verdict = import_part(CHECKER).multi_turn_checker(turns, truth, entry, "", "policy")
    held = vars(import_part("eval_checker.multi_turn_eval.multi_turn_utils"))
    for name in [name for name in held if name.endswith("_instance")]:
        del held[name]  # it keeps the instances of an item for ever
    return bool(verdict["valid"])


@pytest.mark.parametrize("split", datasets.SPLITS)
def test_every_category_has_its_items_and_their_truth_wins(split: str, source: BfclSource) -> None:
    items = source.items(split)
    assert (len(items), items[0].item_id) == (200, f"multi_turn_{split}_0")
    for item in items[::OFTEN]:
        assert play(source, item, source.expert(item, seed=0)).reward == 1.0, item.item_id


@pytest.mark.slow
@pytest.mark.parametrize("split", datasets.SPLITS)
def test_the_truth_of_all_items_wins(split: str, source: BfclSource) -> None:
    for item in source.items(split):
        won = play(source, item, source.expert(item, seed=0)).reward == 1.0
        assert won == (item.item_id not in LONG), item.item_id


@pytest.mark.parametrize("split", datasets.SPLITS)
def test_a_reward_is_the_verdict_of_the_benchmarks_checker(split: str, source: BfclSource) -> None:
    rewards = set()
    for number, item in enumerate(source.items(split)[:: OFTEN // 2]):
        agent = RecordingExpert(source, item, seed=number, noise=(0.0, 0.1, 0.3)[number % 3])
        outcome = play(source, item, agent)
        assert bool(outcome.reward) == published_verdict(item, agent.turns), item.item_id
        rewards.add(outcome.reward)
    assert rewards == {0.0, 1.0}


def test_each_tool_has_the_parameters_of_its_method() -> None:
    for name in CLASSES:
        for tool in class_tools(name):
            signature = inspect.signature(getattr(load_class(name), tool.name))
            parameters = [each for each in signature.parameters.values() if each.name != "self"]
            assert set(tool.parameters["properties"]) == {each.name for each in parameters}
            required = {each.name for each in parameters if each.default is each.empty}
            assert set(tool.parameters["required"]) == required, tool.name


def test_a_document_becomes_a_json_schema() -> None:
    tools = {tool.name: tool.parameters for tool in class_tools("GorillaFileSystem")}
    assert tools["tail"]["properties"]["lines"]["type"] == "integer"
    assert tools["tail"]["properties"]["lines"]["default"] == 10
    assert tools["tail"]["additionalProperties"] is False
    assert "default" not in tools["find"]["properties"]["name"]
    maths = {tool.name: tool.parameters for tool in class_tools("MathAPI")}
    assert maths["mean"]["properties"]["numbers"]["items"] == {"type": "number"}


class Adder:
    def add(self, a: float, b: float = 2) -> None: ...


METHODS = {"add": Adder.add}


def test_calls_of_a_truth_are_read_and_never_evaluated() -> None:
    assert datasets.parse_call("add(-1, b=[1.5])", METHODS).arguments == {"a": -1, "b": [1.5]}


@pytest.mark.parametrize(
    "text",
    [
        "add(open('/etc/passwd').read())",
        "add(a=name)",
        "__import__('os').system('true')",
        "add(*[1])",
        "add(**{'a': 1})",
        "add(1, a=2)",
        "add(1, 2, 3)",
        "add(1); add(2)",
        "add",
        "add(1",
        "buy(1)",
        "(" * 5000,
    ],
)
def test_what_is_no_call_of_a_known_function_with_literals_is_refused(text: str) -> None:
    with pytest.raises(ItemError, match="bfcl: "):
        datasets.parse_call(text, METHODS)


def test_a_missing_package_is_one_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "bfcl_eval"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    with pytest.raises(ItemError) as raised:
        registry.source("bfcl", {})
    assert str(raised.value).startswith("bfcl: the package bfcl-eval cannot be imported: ")
    assert raised.value.hint == "run `pip install --no-deps bfcl-eval==2026.3.23`"
    assert datasets.V4.missing(None) == ("bfcl_eval",)


def test_noise_is_drawn_from_the_seed(source: BfclSource) -> None:
    """Experts of one seed play alike, so a recorded episode can be played again."""
    item = Random(0).choice(source.items("base"))
    outcomes: list[Any] = []
    for _ in range(2):
        agent = RecordingExpert(source, item, seed=3, noise=0.3)
        outcomes.append((play(source, item, agent), agent.turns))
    assert outcomes[0] == outcomes[1]
