"""A person in an episode: what they type becomes a turn, and leaving closes the environment."""

import io
from pathlib import Path
from typing import Any

import docker
import pytest
from task_plugin import add_task

from agentrl.envs.contract import Tool, ToolCall, strings
from agentrl.envs.sandbox.container_owner import ContainerOwner
from agentrl.envs.sandbox.docker_engine import OWNER
from agentrl.ops.tasks.play import Unclear, play, read_action
from agentrl.ops.tasks.show import ItemChoice

QUERY = strings("query", "Ask.", "sql")
MOVE = strings("move", "Move.", "thing", "place")
STOP = strings("stop", "End.")
COUNT = Tool(
    "count",
    "Count.",
    {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "names": {"type": "array", "items": {"type": "string"}},
            "any": True,
        },
        "required": [],
        "additionalProperties": False,
    },
)
UNSHOWN = """
from agentrl.core.errors import ItemError
from agentrl.envs.tasks.dbbench.task_source import DbbenchSource

class source(DbbenchSource):
    def expert(self, item, *, seed, noise=0.0):
        raise ItemError("nothing to demonstrate")
"""
PAYING = """
from dataclasses import replace
from agentrl.envs.tasks.dbbench.task_source import DbbenchSource

class source(DbbenchSource):
    max_turns = 3

    def make(self, item):
        environment = super().make(item)
        call = environment.call
        environment.call = lambda calls: replace(call(calls), reward=0.5, metrics={"rows": 2})
        return environment
"""
TOOLS = (QUERY, MOVE, STOP, COUNT)
NOT_READ = "arguments are neither JSON nor key=value"


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ('query {"sql": "select 1"}', "query", {"sql": "select 1"}),
        ("query select a from t where b = 'c'", "query", {"sql": "select a from t where b = 'c'"}),
        ("query sql=list", "query", {"sql": "list"}),
        ('query sql="select \\"a\\""', "query", {"sql": 'select "a"'}),
        ("query 7", "query", {"sql": "7"}),
        ("query A=1 make", "query", {"sql": "A=1 make"}),
        ("move thing=mug place='desk 1'", "move", {"thing": "mug", "place": "desk 1"}),
        ("move place=7 thing=[1]", "move", {"place": "7", "thing": "[1]"}),
        ("stop", "stop", {}),
        ("count n=3", "count", {"n": 3}),
        ('count names=["a b", "c"] n=-1', "count", {"names": ["a b", "c"], "n": -1}),
        ("count names=ann", "count", {"names": ["ann"]}),
        ("count any=1", "count", {"any": 1}),
    ],
)
def test_a_line_that_begins_with_a_tool_is_a_call(
    line: str, name: str, arguments: dict[str, Any]
) -> None:
    assert read_action(line, TOOLS) == ToolCall(name, arguments)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("move mug", f"move: {NOT_READ}: mug"),
        ('move {"thing": ', f'move: {NOT_READ}: {{"thing":'),
        ("move thing=mug", "move: place is missing"),
        ("count n=three", "count: n is not integer"),
        ("stop now", f"stop: {NOT_READ}: now"),
    ],
)
def test_a_call_that_does_not_fit_says_why(line: str, error: str) -> None:
    call = read_action(line, TOOLS)
    assert isinstance(call, ToolCall)
    assert call.error == error


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "query sql=select a from t where b = 'c'",
            """quote the value: sql="select a from t where b = 'c'\"""",
        ),
        ("move thing=big mug place=desk", 'quote the value: thing="big mug"'),
        ("query bogus=1", "no parameter bogus; known: sql"),
        ("query sql=list bogus=1", "no parameter bogus; known: sql"),
        ("query sq=select a", "no parameter sq; known: sql"),
        ("move thing=mug to=desk", "no parameter to; known: thing, place"),
        ("stop now=1", "no parameter now; it takes none"),
    ],
)
def test_what_looks_like_a_call_and_is_none_is_not_sent(line: str, told: str) -> None:
    with pytest.raises(Unclear) as caught:
        read_action(line, TOOLS)
    assert str(caught.value) == told


@pytest.mark.parametrize("line", ["I think", "Final Answer: #3", "moves thing=mug", "{}"])
def test_any_other_line_is_a_turn_without_a_call(line: str) -> None:
    assert read_action(line, TOOLS) == line


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_person_wins_and_sees_the_reward(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, ":help\n:tools\n\nexecute_sql SELECT 6 * 7\n:expert\n:expert\n:expert\n")
    play(ItemChoice("dbbench", {"items": 2}, item="1"))
    told = capsys.readouterr().out
    assert "\n[(42,)]\n" in told
    assert told.count("── tool commit_final_answer(answers*: array of string)") == 2
    assert ":quit  quit" in told
    assert told.rstrip().endswith("completed: reward 1, score 1 after 3 turns")


def test_a_mistyped_line_says_so_and_costs_no_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, ":exprt\nexecute_sql query=SELECT 1\n")
    play(ItemChoice("dbbench", {"items": 1}))
    told = capsys.readouterr().out
    assert "unknown command :exprt; did you mean :expert?" in told
    assert 'quote the value: query="SELECT 1"' in told
    assert ":quit  quit" not in told
    assert told.rstrip().endswith("quit after 0 turns")


def test_turns_run_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    typed(monkeypatch, "hm\n" * 40)
    play(ItemChoice("dbbench", {"items": 1}))
    end = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert end == "task_limit, turns ran out: reward 0, score 0 after 15 turns"


def test_turns_that_run_out_keep_the_rewards_and_metrics_of_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_task(tmp_path, monkeypatch, "paying", PAYING)
    typed(monkeypatch, "hm\n" * 3)
    play(ItemChoice("paying", {"items": 1}))
    end = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert end == "task_limit, turns ran out: reward 1.5, score 0, rows 2 after 3 turns"


def test_the_end_of_input_is_the_end_of_the_episode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "execute_sql SELECT 1\nexecute_sql SELECT 2")
    play(ItemChoice("dbbench", {"items": 1}))
    assert capsys.readouterr().out.rstrip().endswith("quit after 2 turns")


def test_who_asks_for_an_expert_that_there_is_not_plays_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_task(tmp_path, monkeypatch, "unshown", UNSHOWN)
    typed(monkeypatch, ":expert\nexecute_sql SELECT 6 * 7\n")
    play(ItemChoice("unshown", {"items": 1}))
    told = capsys.readouterr().out
    assert "no expert: nothing to demonstrate" in told
    assert "[(42,)]" in told
    assert told.rstrip().endswith("quit after 1 turn")


class Interrupted(io.TextIOBase):
    """A person who types a line, then Ctrl-C."""

    def __init__(self, line: str) -> None:
        self._lines = [line]

    def readline(self, _size: int = -1, /) -> str:  # type: ignore[override]
        if self._lines:
            return self._lines.pop()
        raise KeyboardInterrupt


@pytest.fixture
def contained(docker_host: str, sandbox_image: str) -> ItemChoice:
    options = {"items": 1, "container": True}
    return ItemChoice("dbbench", options, docker=docker_host, image=sandbox_image)


def test_who_leaves_by_ctrl_c_leaves_no_container(
    contained: ItemChoice,
    docker_client: docker.DockerClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", Interrupted("execute_sql SELECT 1\n"))
    play(contained)
    told = capsys.readouterr().out
    assert "[(1,)]" in told
    assert told.rstrip().endswith("quit after 1 turn")
    mine = {"label": f"{OWNER}={ContainerOwner.this()}"}
    assert not docker_client.api.containers(all=True, filters=mine)
