"""Hostile code in a container on a real engine: it harms its own episode alone."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import docker
import pytest

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs import registry
from agentrl.envs.contract import Item, ToolCall
from agentrl.envs.play import play
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import Sandboxes, Spec, make_sandboxes
from agentrl.envs.tasks.maths.container import ContainedPython, limits, program
from agentrl.envs.tasks.maths.problem import Execution

LOST = "The interpreter was started anew: its variables are gone."
LATE = f"TimeoutError: the code ran for more than 3 s\n{LOST}"
BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"


@pytest.fixture
def sandboxes(engine: Engine, sandbox_image: str) -> Iterator[Sandboxes]:
    with closing(Sandboxes(engine, Spec(sandbox_image, program(), limits(64)))) as pool:
        yield pool


def opened(sandboxes: Sandboxes, timeout_s: float = 3.0) -> ContainedPython:
    return ContainedPython(sandboxes, timeout_s=timeout_s, memory_mb=64)


def test_python_computes_and_keeps_its_state(sandboxes: Sandboxes) -> None:
    with closing(opened(sandboxes, 20)) as python:
        assert python.run("import itertools\nx = sum(range(10))") == Execution("")
        assert python.run("x, len(list(itertools.permutations('abc')))") == Execution("(45, 6)\n")
        assert python.run("1 / 0").error == "ZeroDivisionError: division by zero"


@pytest.mark.slow
def test_endless_code_and_a_fork_bomb_end_at_the_time_limit(sandboxes: Sandboxes) -> None:
    with closing(opened(sandboxes)) as python:
        for code in ("while True: pass", BOMB):
            assert python.run(code).error == LATE
            assert python.run("1 + 1") == Execution("2\n")


def test_memory_and_output_have_bounds(sandboxes: Sandboxes) -> None:
    with closing(opened(sandboxes, 20)) as python:
        assert python.run("x = 'a' * 10**9").error == "MemoryError"
        assert len(python.run("print('a' * 10**7)").text) == 1 << 14
        assert python.run("import sys\nsys.stdout.write('b' * 10**7); 0").error == ""
        assert python.run("1 + 1") == Execution("2\n")


@pytest.mark.slow
def test_many_processes_that_use_memory_do_not_end_the_driver(sandboxes: Sandboxes) -> None:
    code = "import os\nfor _ in range(8): os.fork()\nx = bytearray(40 << 20)\nwhile True: pass"
    with closing(opened(sandboxes)) as python:
        assert LOST in python.run(code).error
        assert python.run("1 + 1") == Execution("2\n")


def test_code_that_ends_its_process_is_told_so(sandboxes: Sandboxes) -> None:
    with closing(opened(sandboxes, 20)) as python:
        assert python.run("exit()").error == "SystemExit: None"
        assert python.run("import os; os._exit(1)").error == LOST
        assert python.run("import os; os.kill(os.getpid(), 9)").error == LOST
        assert python.run("import os; os.kill(1, 9)").error.startswith("PermissionError")
        assert python.run("import os; os.kill(-1, 9)").error.startswith("ProcessLookupError")
        assert python.run("1 + 1") == Execution("2\n")


def test_there_is_nothing_to_read_write_or_reach(sandboxes: Sandboxes) -> None:
    with closing(opened(sandboxes, 20)) as python:
        for path in ("environ", "mem", "maps", "fd", "fdinfo", "root/etc", "cwd"):
            reading = (
                f"import os; p = '/proc/1/{path}'\nos.listdir(p) if os.path.isdir(p) else open(p)"
            )
            found = python.run(reading)
            assert found.text == "[]\n" or found.error.startswith("PermissionError"), path
        assert python.run("import os; os.getuid(), os.getgroups()").text == "(65534, [])\n"
        assert "CapEff:\t0000000000000000" in python.run("open('/proc/self/status').read()").text
        for path in ("/tmp/x", "/x", "/root/x", "/dev/mem", "/etc/hosts"):
            assert "Error" in python.run(f"open('{path}', 'w')").error
        reaching = "import socket\nsocket.create_connection(('1.1.1.1', 80), 1)"
        assert "Error" in python.run(reaching).error
        assert "Error" in python.run("import os; os.setuid(0)").error


def test_a_container_serves_the_next_episode_unless_something_was_left(
    sandboxes: Sandboxes,
) -> None:
    names = []
    segment = "import ctypes\nctypes.CDLL(None).shmget(7, 4096, 0o1666)"
    for code in ("x = 1", segment, "open('/dev/shm/x', 'w')", "x"):
        python = opened(sandboxes, 20)
        names.append(python._lease.sandbox.container)
        found = python.run(code)
        python.close()
        python.close()
    assert found.error == "NameError: name 'x' is not defined"
    assert names[0] == names[1], "nothing was left"
    assert len({*names}) == 3, "shared memory and files outlive processes"


def test_a_killed_container_fails_the_episode_and_the_next_one_is_fine(
    sandboxes: Sandboxes, docker_client: docker.DockerClient
) -> None:
    python = opened(sandboxes)
    docker_client.containers.get(python._lease.sandbox.container).kill()
    with pytest.raises(EnvironmentFailure, match="its process ended"):
        python.run("1")
    with pytest.raises(EnvironmentFailure, match="closed"):
        python.run("1")
    python.close()
    with closing(opened(sandboxes, 20)) as fresh:
        assert fresh.run("1") == Execution("1\n")


def test_an_expert_solves_items_in_containers(engine: Engine, sandbox_image: str) -> None:
    options: dict[str, Any] = {"container": True, "difficulty": "hard", "items": 11}
    source = registry.source("maths", options)
    (pool,) = make_sandboxes(source, engine, sandbox_image)
    with closing(pool):
        played = [play(source, each, source.expert(each, seed=0)) for each in source.items("train")]
        assert [each.reward for each in played] == [1.0] * 11
        assert {each.metrics["tool_calls"] for each in played} == {1.0}


def test_an_episode_that_never_computes_leases_no_container(
    engine: Engine, sandbox_image: str
) -> None:
    source = registry.source("maths", {"container": True})
    (pool,) = make_sandboxes(source, engine, sandbox_image)
    with closing(pool):
        environment = source.make(Item("maths", "x", {"question": "?", "answer": "1"}))
        environment.start()
        assert environment.call([ToolCall("answer", {"answer": "1"})]).reward == 1.0
        environment.close()
        assert not pool._present()
