"""What holds for every task: experts solve it, chance does not, ill-formed calls are answered.

Tasks in containers play a few episodes, on a real engine.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.core.types import SOLVED, TRAINABLE
from agentrl.envs import registry
from agentrl.envs.contract import (
    Environment,
    Item,
    Message,
    Outcome,
    TaskSource,
    ToolCall,
    recovery_of,
)
from agentrl.envs.play import play
from agentrl.envs.server.in_process import host_sandboxes, needs_container
from agentrl.envs.tasks.repetition import first_difference, record_episode
from agentrl.envs.tasks.task_measurements import fingerprint

TASKS = sorted(registry.TASKS)
CONTAINED = [task for task in TASKS if needs_container(registry.source(task, {}))]
LOCAL = [task for task in TASKS if task not in CONTAINED]
EVERY = [*LOCAL, *(pytest.param(task, marks=pytest.mark.slow) for task in CONTAINED)]
SIZES = ("easy", "medium", "hard")
EPISODES, CONTAINED_EPISODES = 40, 4

Open = Callable[..., TaskSource]


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Makes sources, with sandboxes where they need them."""
    with ExitStack() as undo:

        def open_source(task: str, **options: Any) -> TaskSource:
            source = registry.source(task, options)
            if needs_container(source):
                named = (request.getfixturevalue(name) for name in ("docker_host", "sandbox_image"))
                undo.enter_context(host_sandboxes(source, *named))
            return source

        yield open_source


@cache
def drawn(task: str, size: str) -> tuple[TaskSource, Sequence[Item]]:
    source = registry.source(task, {"difficulty": size, "items": EPISODES})
    return source, source.items("train")


@cache
def played(task: str, size: str, noise: float) -> list[Outcome]:
    source, items = drawn(task, size)
    return [
        play(source, each, source.expert(each, seed=n, noise=noise)) for n, each in enumerate(items)
    ]


def success(outcomes: Sequence[Outcome]) -> float:
    return sum(each.done and each.score >= SOLVED for each in outcomes) / len(outcomes)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("task", LOCAL)
def test_an_expert_without_noise_solves_nearly_everything(task: str, size: str) -> None:
    assert success(played(task, size, 0.0)) >= 0.95


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("task", CONTAINED)
def test_an_expert_solves_what_runs_in_containers(task: str, size: str, opened: Open) -> None:
    source = opened(task, difficulty=size, test_items=CONTAINED_EPISODES)
    for item in source.items("test"):
        assert success([play(source, item, source.expert(item, seed=0))]) == 1.0, item.item_id


@pytest.mark.parametrize("task", LOCAL)
def test_noise_makes_an_expert_fail_more_often(task: str) -> None:
    assert success(played(task, "easy", 0.8)) < success(played(task, "easy", 0.3)) < 1.0


@pytest.mark.parametrize(("name", "size"), [("random", "easy"), ("constant", "hard")])
@pytest.mark.parametrize("task", LOCAL)
def test_acting_by_chance_or_always_alike_rarely_succeeds(task: str, name: str, size: str) -> None:
    """On easy webshop items the first result of a search for the question is often the product."""
    check = registry.beside(task, "check")
    assert check is not None
    source, items = drawn(task, size)
    outcomes = [play(source, each, check.baselines(each, n)[name]) for n, each in enumerate(items)]
    assert success(outcomes) < 0.2


@pytest.mark.parametrize("task", LOCAL)
def test_an_environment_made_anew_answers_the_same_actions_alike(task: str) -> None:
    """What an expert does, by chance or not, and what a policy does that knows nothing."""
    check = registry.beside(task, "check")
    assert check is not None
    source, items = drawn(task, "easy")
    assert recovery_of(source) == "replayable"
    for seed, item in enumerate(items[:10]):
        for agent in (
            source.expert(item, seed=seed, noise=0.4),
            check.baselines(item, seed)["random"],
        ):
            played = record_episode(source, item, agent)
            assert first_difference(source, item, played) == ""


@pytest.mark.parametrize("task", EVERY)
def test_an_expert_calls_the_tools_there_are_within_a_dozen_turns(task: str, opened: Open) -> None:
    source = opened(task, items=3)
    for item in source.items("train"):
        environment, expert = source.make(item), source.expert(item, seed=0)
        names = {tool.name for tool in environment.tools}
        outcome = Outcome(environment.start().messages)
        for _ in range(12):
            act = expert.act(outcome.messages)
            assert isinstance(act, str) or act.name in names
            outcome = environment.call(act if isinstance(act, str) else [act])
            if outcome.done:
                break
        environment.close()
        assert outcome.done


@pytest.mark.parametrize("task", EVERY)
@pytest.mark.parametrize("style", ["full", "compact"])
def test_an_episode_starts_with_a_system_and_a_user_message(
    task: str, style: str, opened: Open
) -> None:
    source = opened(task, items=1, style=style)
    environment = source.make(source.items("train")[0])
    messages = environment.start().messages
    environment.close()
    assert [message.role for message in messages] == ["system", "user"]
    assert (messages[0].content == task) == (style == "compact")


@pytest.mark.parametrize("task", TASKS)
def test_items_are_a_function_of_options_and_travel_as_json(task: str) -> None:
    options = {"items": 4, "test_items": 2, "seed": 7, "difficulty": "medium"}
    first, second = (registry.source(task, options).items("train") for _ in range(2))
    assert [each.item_id for each in first] == [each.item_id for each in second]
    assert [json.dumps(each.content) for each in first] == [
        json.dumps(each.content) for each in second
    ]


@pytest.mark.parametrize("task", EVERY)
def test_an_item_that_travelled_makes_the_same_episode_elsewhere(task: str, opened: Open) -> None:
    """An env server may have made another source, and is sent the content alone."""
    here, there = opened(task, items=1), opened(task, items=2, seed=9)
    item = here.items("train")[0]
    sent = Item(task, "custom", json.loads(json.dumps(item.content)))
    environments = here.make(item), there.make(sent)
    seen = [environment.start().messages for environment in environments]
    for environment in environments:
        environment.close()
    assert seen[0] == seen[1]


@pytest.mark.parametrize("task", TASKS)
def test_splits_of_all_difficulties_and_seeds_share_no_content(task: str) -> None:
    found: dict[str, list[str]] = {"train": [], "test": []}
    for size in SIZES:
        for seed in (0, 1):
            options = {"difficulty": size, "seed": seed, "items": 8, "test_items": 4}
            for split in found:
                found[split] += map(fingerprint, registry.source(task, options).items(split))
    assert (len(found["train"]), len(found["test"])) == (48, 24)
    assert not {*found["train"]} & {*found["test"]}


@pytest.mark.parametrize("task", EVERY)
def test_closing_twice_or_before_the_start_is_fine(task: str, opened: Open) -> None:
    source = opened(task, items=1)
    environment = source.make(source.items("train")[0])
    environment.close()
    environment = source.make(source.items("train")[0])
    environment.start()
    environment.close()
    environment.close()


@pytest.mark.parametrize("name", ["", "nameless", "its own"])
@pytest.mark.parametrize("task", EVERY)
def test_why_a_call_could_not_be_parsed_is_what_the_agent_reads(
    task: str, name: str, opened: Open
) -> None:
    """Also where the text was so broken that it names no tool."""
    source = opened(task, items=1)
    environment = source.make(source.items("train")[0])
    environment.start()
    called = environment.tools[0].name if name == "its own" else name
    outcome = environment.call([ToolCall(called, {}, "the call is not JSON: char 7")])
    environment.close()
    assert not outcome.done
    assert "the call is not JSON: char 7" in outcome.messages[0].content


@pytest.mark.parametrize("task", LOCAL)
def test_a_long_argument_does_not_come_back_whole(task: str) -> None:
    source, items = drawn(task, "easy")
    for tool in source.make(items[0]).tools:
        environment = source.make(items[0])
        environment.start()
        properties = tool.parameters["properties"]
        long = dict.fromkeys(properties, "x" * 1000000)
        outcome = environment.call([ToolCall(tool.name, long)])
        environment.close()
        assert sum(len(each.content) for each in outcome.messages) < 50_000, tool.name


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def turn(environment: Environment) -> st.SearchStrategy[list[ToolCall] | str]:
    """Calls of its tools and of none, with its parameters and others; or a text."""
    parameters = (tool.parameters["properties"] for tool in environment.tools)
    keys = st.sampled_from(["more", *(name for names in parameters for name in names)])
    names = st.sampled_from(["eval", "", *(tool.name for tool in environment.tools)])
    arguments = st.dictionaries(keys, st.text() | ANYTHING, max_size=2)
    calls = st.builds(ToolCall, names, arguments, st.sampled_from(["", "", "no JSON"]))
    return st.lists(calls, max_size=3) | st.text()


def check_answers(source: TaskSource, data: st.DataObject) -> None:
    """On one item of the source."""
    environment = source.make(source.items("train")[0])
    environment.start()
    try:
        for _ in range(data.draw(st.integers(1, 5))):
            outcome = environment.call(data.draw(turn(environment)))
            assert outcome.done or outcome.messages
            assert outcome.status in TRAINABLE
            assert all(isinstance(message, Message) for message in outcome.messages)
            if outcome.done:
                return
    finally:
        environment.close()


@pytest.mark.parametrize("task", LOCAL)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_whatever_the_agent_writes_is_answered(task: str, data: st.DataObject) -> None:
    check_answers(drawn(task, "easy")[0], data)


@pytest.mark.slow
@pytest.mark.parametrize("task", CONTAINED)
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_the_agent_writes_to_a_container_is_answered(
    task: str, data: st.DataObject, opened: Open
) -> None:
    check_answers(opened(task, items=1), data)
