"""Episodes on servers made with the package `openenv`: tasks, seeds, tools and rewards."""

import pytest
from adapter_pages import task_of_page
from openenv_servers import Sources, act, begun

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs import registry
from agentrl.envs.contract import ToolCall

pytest.importorskip("websockets", reason="needs pip install 'agentrl-system[openenv]'")


def test_the_tasks_of_a_server_are_items_of_its_splits(sources: Sources) -> None:
    task = registry.source("words", {}, sources["words"])
    assert task.splits == ("train", "test")
    assert [item.item_id for item in task.items("train")] == ["train-0", "train-1"]
    with pytest.raises(ItemError, match="unknown split tests; did you mean test"):
        task.items("tests")
    environment = task.make(task.items("test")[0])
    try:
        system, user = environment.start().messages
        assert system.content == "You act in words. Call act with an action."
        assert user.content == "A word of 3 letters."
        assert environment.call(act("fig")).reward == 1.0
    finally:
        environment.close()


def test_the_configuration_of_the_page_plays_its_episodes(sources: Sources) -> None:
    page = task_of_page("openenv")
    assert page.source == "openenv:http://127.0.0.1:8000"
    task = registry.source("words", page.options, sources["words"])
    environment = task.make(task.items("train")[0])
    try:
        assert environment.start().messages[0].content == "Guess the word."
        assert environment.call(act("fig")).reward == -0.25
        ended = environment.call(act("apple"))
        assert (ended.done, ended.reward, ended.score) == (True, 1.0, 1.0)
    finally:
        environment.close()


def test_rewards_add_up_and_the_state_gives_the_metrics(sources: Sources) -> None:
    environment = begun(sources["words"], solved=0.5)
    try:
        environment.start()
        first = environment.call(act("plum"))
        (answer,) = first.messages
        assert (answer.role, answer.name, answer.content) == ("tool", "act", "no")
        assert first.reward == -0.25
        assert environment.call("lemon").messages[0].content == "no", "a text is its one field"
        outcome = environment.call([*act("apple"), *act("after the end")])
    finally:
        environment.close()
        environment.close()
    assert (outcome.done, outcome.status) == (True, Status.COMPLETED)
    assert (outcome.reward, outcome.score) == (1.0, 1.0), "0.5 in all"
    assert outcome.metrics == {"step_count": 3.0}


def test_the_last_turn_ends_an_episode_with_its_rewards(sources: Sources) -> None:
    environment = begun(sources["words"], max_turns=1, reward="last")
    try:
        environment.start()
        outcome = environment.call([*act("fig"), *act("plum")])
    finally:
        environment.close()
    assert (outcome.done, outcome.status, outcome.reward) == (True, Status.TASK_LIMIT, -0.25)


def test_a_server_without_tasks_is_reset_with_seeds(sources: Sources) -> None:
    options = {"items": 8, "test_items": 2}
    task = registry.source("words", options, sources["seeds"])
    assert task.splits == ("train", "test")
    items = task.items("train")
    assert len({item.content["seed"] for item in items}) == 8
    first, again = task.make(items[0]), task.make(items[0])
    try:
        assert first.start() == again.start()
    finally:
        first.close()
        again.close()
    given = begun(sources["seeds"], **options, reset={"word": "quince"}, prompt="Guess.")
    try:
        assert [each.content for each in given.start().messages] == [
            "Guess.",
            "A word of 6 letters.",
        ]
    finally:
        given.close()


def test_what_does_not_fit_the_action_is_an_answer_and_a_crash_a_failure(sources: Sources) -> None:
    environment = begun(sources["words"])
    try:
        assert environment.tools[0].parameters["required"] == ["word"]
        assert list(environment.tools[0].parameters["properties"]) == ["word"]
        environment.start()
        calls = [*act(""), ToolCall("guess", {}), ToolCall("act", {}, "no JSON: char 7")]
        short, other, broken = (each.content for each in environment.call(calls).messages)
        assert short == "word: String should have at least 1 character"
        assert (other, broken) == ("There is no tool guess.", "no JSON: char 7")
        with pytest.raises(EnvironmentFailure, match="step: the dictionary burns"):
            environment.call(act("crash"))
    finally:
        environment.close()


def test_tools_of_the_server_are_steps_with_rewards(sources: Sources) -> None:
    environment = begun(sources["tools"], items=1, test_items=1)
    try:
        assert [tool.name for tool in environment.tools] == ["add"]
        assert environment.tools[0].parameters["required"] == ["a", "b"]
        assert environment.start().messages[1].content == '{"metadata": {"target": 5}}'
        wrong, fault = environment.call(
            [ToolCall("add", {"a": 1, "b": 1}), ToolCall("add", {"a": "x"})]
        ).messages
        assert wrong.content == "2"
        assert "validation error" in fault.content
        outcome = environment.call([ToolCall("add", {"a": 2, "b": 3})])
        assert (outcome.done, outcome.reward) == (True, 1.0)
    finally:
        environment.close()


def test_a_turn_without_a_call_ends_an_episode_with_tools(sources: Sources) -> None:
    environment = begun(sources["tools"], items=1, test_items=1)
    try:
        environment.start()
        outcome = environment.call("I give up.")
    finally:
        environment.close()
    assert (outcome.done, outcome.status, outcome.reward) == (True, Status.COMPLETED, 0.0)


def test_tools_beside_an_action_are_called_without_a_step(sources: Sources) -> None:
    environment = begun(sources["both"], items=1, test_items=1)
    try:
        environment.start()
        assert [tool.name for tool in environment.tools] == ["act", "add"]
        (answer,) = environment.call([ToolCall("add", {"a": 3, "b": 4})]).messages
        assert answer.content == "7"
        assert environment.call(act("7")).reward == 1.0
    finally:
        environment.close()
