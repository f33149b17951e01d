"""Sandboxes of nobody on a real Docker engine: what holds them in."""

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import docker
import pytest
from running import eventually
from sandbox_programs import SMALL, ask, python, sandbox

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.sandbox.channel import Overrun
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import Sandbox, Spec

Owned = Callable[[], list[str]]


def test_a_sandbox_has_no_network_no_root_and_one_small_place_to_write(
    engine: Engine, sandbox_image: str
) -> None:
    with sandbox(engine, sandbox_image) as held:
        connect = "__import__('socket').create_connection(('1.1.1.1', 53), 3)"
        assert ask(held, connect) == "OSError"
        assert ask(held, "sorted(os.listdir('/sys/class/net'))") == "['lo']"
        assert ask(held, "open('/etc/new', 'w')") in ("OSError", "PermissionError")
        assert ask(held, "os.getuid()") == "65534"
        assert ask(held, "open('/tmp/new', 'wb').write(bytes(1000))") == "1000"
        assert ask(held, "open('/tmp/big', 'wb').write(bytes(2 << 20))") == "OSError"
        writable = "[d for d, _, _ in os.walk('/') if os.access(d, os.W_OK) and d[:5] != '/proc']"
        assert ask(held, writable) == "['/dev/mqueue', '/tmp']"
        status = (
            "[l.split()[1] for l in open('/proc/self/status') if l[:6] in ('CapEff', 'NoNewP')]"
        )
        assert ask(held, status) == "['0000000000000000', '1']"


def test_a_fork_bomb_meets_the_limit_of_processes(engine: Engine, sandbox_image: str) -> None:
    with sandbox(engine, sandbox_image) as held:
        bomb = "[os.fork() or __import__('time').sleep(60) for _ in range(100)]"
        assert ask(held, bomb) == "BlockingIOError"
        assert ask(held, "1 + 1") == "2"


def test_a_memory_bomb_ends_its_own_container_only(engine: Engine, sandbox_image: str) -> None:
    with sandbox(engine, sandbox_image) as other, sandbox(engine, sandbox_image) as held:
        with pytest.raises(Overrun, match="out of memory"):
            ask(held, "len(bytearray(200 << 20))")
        assert ask(other, "1 + 1") == "2"


def test_a_command_that_ignores_term_is_given_up_and_killed(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient, owned: Owned
) -> None:
    text = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass"
    held = Sandbox(engine, Spec(sandbox_image, python(text), SMALL))
    with pytest.raises(EnvironmentFailure, match=r"no answer within 0\.5 s"):
        ask(held, "hello", timeout_s=0.5)
    held.close()
    events = docker_client.api.events(
        since=1,
        until=time.time(),
        filters={"container": held.container, "event": "kill"},
        decode=True,
    )
    signals = [event["Actor"]["Attributes"]["signal"] for event in events]
    assert signals == ["9"], "an engine terminates first what it is only told to stop"
    eventually(lambda: not owned(), within_s=60, text=lambda: "too late")


def test_a_gigabyte_of_output_is_cut_and_not_kept(engine: Engine, sandbox_image: str) -> None:
    text = "import os\nchunk = bytes(65536)\nfor _ in range(16384): os.write(1, chunk)"
    with sandbox(engine, sandbox_image, python(text)) as held:
        tracemalloc.start()
        with pytest.raises(EnvironmentFailure, match="answer has more than 1048576 bytes"):
            ask(held, "hello")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 << 20


def test_files_of_the_host_and_its_engine_are_not_there(
    engine: Engine, sandbox_image: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("of the host")
    with sandbox(engine, sandbox_image) as held:
        for path in (tmp_path / "secret", "/var/run/docker.sock", "/proc/1/root" + str(tmp_path)):
            assert ask(held, f"os.path.exists({str(path)!r})") == "False"
        assert ask(held, "os.mknod('/tmp/disk', 0o60660, os.makedev(8, 0))") == "PermissionError"
        assert ask(held, "open('/proc/sys/kernel/core_pattern', 'w')") == "OSError"


def test_a_daemonised_child_ends_with_its_container(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    with sandbox(engine, sandbox_image) as held:
        daemon = "os.fork() or (os.setsid(), os.fork() or os.execvp('sleep', ['sleep', '777']))"
        assert ask(held, daemon) != "OSError"

        def sleeping() -> list[list[str]]:
            processes = docker_client.api.top(held.container)["Processes"]
            return [each for each in processes if each[-1] == "sleep 777"]

        eventually(sleeping, within_s=60, text=lambda: "no daemon")
        process = Path("/proc", sleeping()[0][1])
        assert process.exists()
    eventually(lambda: not process.exists(), within_s=60, text=lambda: "too late")


def test_one_that_is_killed_from_outside_is_nobodys_fault(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    with sandbox(engine, sandbox_image) as held:
        docker_client.api.kill(held.container)
        with pytest.raises(EnvironmentFailure, match="its process ended") as told:
            ask(held, "__import__('time').sleep(9)")
    assert not isinstance(told.value, Overrun)


def test_a_process_that_ends_tells_its_last_words(engine: Engine, sandbox_image: str) -> None:
    program = python("import sys; sys.stdin.readline(); sys.exit('the disk is on fire')")
    with (
        sandbox(engine, sandbox_image, program) as held,
        pytest.raises(EnvironmentFailure, match="ended: the disk is on fire"),
    ):
        ask(held, "hello")
