"""An episode of the OS task in a container of its own, rule by rule."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import pytest

from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs import registry
from agentrl.envs.contract import Item, Outcome, ToolCall
from agentrl.envs.sandbox.channel import Overrun
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import Sandboxes, make_sandboxes
from agentrl.envs.tasks.oslinux.environment import NO_CALL, PROBLEM, UNKNOWN_TOOL, OsEnvironment
from agentrl.envs.tasks.oslinux.machine import Machine
from agentrl.envs.tasks.oslinux.problem import Problem
from agentrl.envs.tasks.oslinux.task_source import OsSource
from agentrl.envs.tasks.oslinux.terminal import TRUNCATED

Made = Callable[..., OsEnvironment]

COUNT = {
    "description": "How many files are in /root/docs?",
    "init": [{"code": "mkdir docs; touch docs/a docs/b"}],
    "example": {"code": "ls docs | wc -l"},
    "check": [{"example": True}, {"matcher": "integer-match"}],
}

BOMB = "import os, contextlib\nwhile True:\n with contextlib.suppress(OSError): os.fork()"


@pytest.fixture
def made(engine: Engine, sandbox_image: str) -> Iterator[Made]:
    """Environments of item contents, started; closed at the end. `seconds`: of a command."""
    opened: list[OsEnvironment] = []
    source = OsSource({"spares": 0})
    (pool,) = make_sandboxes(source, engine, sandbox_image)

    def make(content: Mapping[str, Any], seconds: float = 60.0) -> OsEnvironment:
        problem = msgspec.convert(content, Problem)
        machine = partial(Machine, pool)
        made = OsEnvironment(problem, "full", machine, command_s=seconds, script_s=60.0)
        opened.append(made)
        made.start()
        return made

    yield make
    for environment in opened:
        environment.close()
    pool.close()


def bash(script: Any) -> ToolCall:
    return ToolCall("bash_action", {"script": script})


def answer(text: str) -> ToolCall:
    return ToolCall("answer_action", {"answer": text})


def said(environment: OsEnvironment, script: str) -> str:
    outcome = environment.call([bash(script)])
    assert not outcome.done
    (message,) = outcome.messages
    assert (message.role, message.name) == ("tool", "bash_action")
    return message.content.removeprefix("The output of the OS:\n\n")


def change(check: str, **more: Any) -> dict[str, Any]:
    return {"description": "Do it.", "check": [{"script": {"code": check}}]} | more


def test_an_episode_of_commands_and_an_answer(made: Made) -> None:
    environment = made(COUNT)
    assert said(environment, "cd docs && ls; name=eva") == "a\nb\n"
    assert said(environment, "pwd; echo $name; id -un") == "/root/docs\neva\nroot\n"
    assert said(environment, "true") == "The output of the OS is empty."
    assert environment.call("I think 2") == Outcome((environment.call([]).messages[0],))
    assert environment.call("I think 2").messages[0].content == NO_CALL
    assert environment.call([ToolCall("rm", {})]).messages[0].content == UNKNOWN_TOOL
    for wrong in (
        ToolCall("bash_action", {}),
        ToolCall("bash_action", {"script": 3}),
        ToolCall("bash_action", {"script": "ls", "more": "x"}),
        ToolCall("answer_action", {"script": "2"}),
        ToolCall("finish_action", {"thought": "2"}, error="not JSON"),
    ):
        outcome = environment.call([wrong])
        assert not outcome.done
        assert outcome.messages[0].content.startswith("Error: ")
    outcome = environment.call([answer(" 2 "), bash("rm -r /root/docs")])
    assert outcome == Outcome((), done=True, status=Status.COMPLETED, reward=1.0, score=1.0)


def test_the_target_is_of_the_time_before_the_agent_acted(made: Made) -> None:
    environment = made(COUNT)
    said(environment, "touch docs/c docs/d")
    assert environment.call([answer("4")]).reward == 0.0
    environment = made(COUNT)
    said(environment, "rm -r docs; ln -sf /bin/true /usr/bin/wc")
    assert environment.call([answer("2")]).reward == 1.0


def test_an_example_that_changes_something_leaves_no_trace(made: Made) -> None:
    moving = COUNT | {"example": {"code": "touch docs/c /tmp/new; ls docs | wc -l; sleep 99 &"}}
    environment = made(moving)
    assert said(environment, "ls docs /tmp; grep -l sleep /proc/*/comm") == "/tmp:\n\ndocs:\na\nb\n"
    assert environment.call([answer("3")]).reward == 1.0


def test_a_target_is_of_the_agent_s_own_machine_where_scripts_draw_by_chance(made: Made) -> None:
    """An example that writes is run on another machine, whose files hold something else."""
    chance = {
        "description": "Which number is in /root/drawn?",
        "init": [{"code": "echo $RANDOM$RANDOM > drawn"}],
        "example": {"code": "touch noted; cat drawn"},
        "check": [{"example": True}, {"matcher": "string-match"}],
    }
    environment = made(chance)
    drawn = said(environment, "cat drawn; ls noted 2>/dev/null").strip()
    assert environment.call([answer(drawn)]).reward == 1.0
    assert made(chance).call([answer("7")]).reward == 0.0


def test_the_whole_disk_can_be_searched_and_files_opened_by_high_numbers(made: Made) -> None:
    """Of the first process, which nobody may inspect, Linux would refuse some folders."""
    environment = made(COUNT)
    assert said(environment, "find / >/dev/null; echo $?") == "0\n"
    assert said(environment, "exec 12332>opened; echo on >&12332; cat opened") == "on\n"


def test_a_script_before_a_matcher_that_reads_no_argument_is_a_target(made: Made) -> None:
    check = [{"script": {"code": "cat word"}}, {"matcher": "string-match"}]
    content = {"description": "?", "init": [{"code": "echo eva > word"}], "check": check}
    environment = made(content)
    said(environment, "echo kim > word")
    assert environment.call([answer("eva")]).reward == 1.0
    late = made(content | {"init": []})
    said(late, "echo kim > word")
    assert late.call([answer("kim")]).reward == 1.0


def test_a_script_gets_the_answer_and_the_outputs_before_it(made: Made) -> None:
    check = [
        {"example": True},
        {"script": {"code": 'echo "$1:$2:$3"'}},
        {
            "script": {
                "language": "python",
                "code": "import sys; exit(sys.argv[1:] != ['a b', 'hi\\n', 'a b:hi:\\n'])",
            }
        },
    ]
    content = {"description": "?", "example": {"code": "echo hi"}, "check": check}
    assert made(content).call([answer("a b")]).reward == 0.0
    content["check"][1]["script"]["code"] = 'printf "%s:%s:\\n" "$1" "$(echo $2)"'  # type: ignore[index]
    assert made(content).call([answer("a b")]).reward == 1.0
    assert made(content).call([answer("b")]).reward == 0.0


def test_a_change_is_scored_by_what_is_there_and_finishing_is_an_answer(made: Made) -> None:
    content = change('[ "$(cat f)" = "$1" ]')
    environment = made(content)
    said(environment, "echo eva > /root/f")
    finish = ToolCall("finish_action", {"thought": "eva"})
    assert environment.call([finish]).reward == 1.0
    assert made(content).call([finish]).reward == 0.0


def test_what_the_agent_left_running_is_killed_before_the_check_but_not_the_items_own(
    made: Made,
) -> None:
    init = [{"code": "sleep 98 & echo $! > own"}]
    start = {"code": "i=0; while :; do echo $((i++)) > ticks; sleep 0.05; done &"}
    check = "kill -0 $(cat own) && ! kill -0 $(cat left) && a=$(cat ticks) && sleep 2"
    environment = made(change(f'{check} && [ "$a" != "$(cat ticks)" ]', init=init, start=start))
    script = "trap '' TERM; (while :; do sleep 0.1; done) & echo $! > left; ls"
    assert said(environment, script).endswith("left\nown\nticks\n")
    assert environment.call([answer("")]).reward == 1.0


def test_a_fork_bomb_beside_the_items_own_process_ends_before_the_check(made: Made) -> None:
    init = [{"code": "sleep 98 & echo $! > own"}]
    environment = made(change("kill -0 $(cat own)", init=init))
    bomb = f"setsid python3 -c '{BOMB}' >/dev/null 2>&1 & sleep 1; echo on"
    assert said(environment, bomb).endswith("on\n")
    assert environment.call([answer("")]).reward == 1.0


@pytest.mark.slow
def test_what_an_agent_does_to_its_system_costs_its_episode_only(made: Made) -> None:
    environment = made(COUNT)
    assert said(environment, "kill -9 1; kill -INT 1; echo on").endswith("on\n")
    spoof = "echo {} > /proc/1/fd/1; cat /proc/1/mem"
    assert said(environment, spoof).count("Permission denied") == 2
    assert said(environment, "head -c 1G /dev/zero | tr '\\0' x") == "x" * 780 + TRUNCATED
    assert said(environment, "python3 -c 'x = bytearray(3 << 30)'; echo $?") == "137\n"
    assert said(environment, "kill -9 $$").endswith("runs in a new one]")
    assert said(environment, "rm -rf /root /usr/bin/ls; pwd").endswith("/root\n")
    assert environment.call([answer("2")]).reward == 1.0
    assert said(made(COUNT), "ls docs") == "a\nb\n"


def test_commands_that_do_not_end_are_stopped(made: Made) -> None:
    environment = made(COUNT, seconds=2.0)
    stopped = "[the command was stopped after 2 seconds]"
    assert said(environment, "trap '' INT TERM; yes").splitlines()[-2] == stopped
    bomb = "f() { f | f & }; f; while :; do :; done"  # waits without a fork, which might fail
    assert said(environment, bomb).splitlines()[-1].startswith("[the")
    late = said(environment, "trap '' INT TERM; while :; do :; done")
    assert late.splitlines()[-1].startswith("[the")  # its shell dies, and the bomb too
    assert said(environment, "echo back") == "back\n"
    assert environment.call([answer("2")]).reward == 1.0


def test_filling_the_disk_ends_the_episode_by_its_agents_fault(made: Made) -> None:
    environment = made(COUNT)
    with pytest.raises(Overrun, match="disk"):
        environment.call([bash("for i in 1 2 3 4; do fallocate -l 200M $i; done; sleep 50")])
    assert said(made(COUNT), "ls docs") == "a\nb\n"


def test_a_script_of_an_item_that_fails_is_no_fault_of_the_agent(made: Made) -> None:
    with pytest.raises(EnvironmentFailure, match="init script 1 exited with 7: no such luck"):
        made(COUNT | {"init": [{"code": "true"}, {"code": "echo no such luck >&2; exit 7"}]})


@pytest.mark.slow
@pytest.mark.parametrize("difficulty", ["medium", "hard"])  # medium has the easy ones, too
def test_an_expert_solves_one_item_of_every_template(
    engine: Engine, sandbox_image: str, difficulty: str
) -> None:
    source = registry.source("os", {"difficulty": difficulty, "items": 12, "spares": 0})
    (pool,) = make_sandboxes(source, engine, sandbox_image)
    with closing(pool):
        for item in source.items("train"):
            assert _played(source, item, pool) == 1.0


def _played(source: Any, item: Item, pool: Sandboxes) -> float:
    with closing(source.make(item)) as environment:
        expert = source.expert(item, seed=0)
        outcome = Outcome(environment.start().messages)
        while not outcome.done:
            outcome = environment.call([expert.act(outcome.messages)])
    assert not pool._leased
    return float(outcome.reward)


def test_without_containers_an_episode_is_refused() -> None:
    source = registry.source("os", {"items": 1})
    with pytest.raises(ConfigError, match="in containers, which need an env server"):
        source.make(source.items("train")[0])


def test_the_prompts_hold_the_description_or_its_short_form() -> None:
    source = OsSource({"items": 1})
    content = source.items("train")[0].content
    problem = Problem(content["description"], short=content["short"])
    for style, tag, user in (
        ("full", "You act like a person", PROBLEM + problem.description),
        ("compact", "os", problem.short),
    ):
        environment = OsEnvironment(problem, style, _machine, command_s=1, script_s=1)  # type: ignore[arg-type]
        system, shown = environment.start().messages
        assert system.content.startswith(tag)
        assert shown.content == user


class _Idle:
    """A machine that nothing is asked of."""

    def keep(self) -> None: ...


def _machine() -> Any:
    return _Idle()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({}, "description"),
        ({"description": "?"}, "needs either a match or a check"),
        (COUNT | {"match": {"answer": "2"}}, "needs either a match or a check"),
        (COUNT | {"check": [{"matcher": "near-match"}]}, "matcher"),
        (COUNT | {"check": [{}]}, "a step is"),
        (COUNT | {"check": [{"example": True, "matcher": "in"}]}, "a step is"),
        ({"description": "?", "check": [{"example": True}]}, "uses the example, but it has none"),
        ({"description": "?", "match": {"regex": "("}}, "regex"),
        (COUNT | {"init": [{"code": "x", "language": "c++"}]}, "language|Invalid enum"),
        (COUNT | {"typo": 1}, "typo"),
    ],
)
def test_a_broken_item_is_an_error_that_names_it(content: dict[str, Any], why: str) -> None:
    with pytest.raises(ItemError, match="item broken") as raised:
        OsSource({}).make(Item("os", "broken", content))
    assert any(each in str(raised.value) for each in why.split("|"))


def test_an_item_without_commands_example_and_answer_has_no_expert() -> None:
    changed = {"description": "Make x.", "check": [{"script": {"code": "test -e x"}}]}
    with pytest.raises(ItemError, match="no commands, example or answer"):
        OsSource({}).expert(Item("os", "x", changed), seed=0)
