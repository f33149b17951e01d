"""Sandboxes whose agent is root on a real Docker engine: what it can break is its own."""

from collections.abc import Callable
from dataclasses import replace

import docker
import pytest
from running import eventually
from sandbox_programs import SMALL_OS, root_pool, run

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.sandbox.channel import Overrun
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import Sandboxes

Owned = Callable[[], list[str]]

MANY_FILES = "for i in $(seq 40); do head -c 8M /dev/zero >/root/$i || exit; done; sleep 20"
DEVICES = "mknod /root/disk b 8 0; mount -t tmpfs none /mnt; chroot / true; date -s 1 >/dev/null"


def test_root_has_a_disk_and_its_few_capabilities(engine: Engine, sandbox_image: str) -> None:
    with root_pool(engine, sandbox_image) as pool:
        held = pool.lease()
        assert run(held, "ls -A /tmp /root/.b* && pwd") == (0, "/root/.bashrc\n\n/tmp:\n/root\n")
        made = "useradd -m eve && echo hi >/opt/x && chown eve /opt/x && stat -c %U /opt/x"
        assert run(held, made) == (0, "eve\n")
        assert run(held, "grep CapEff /proc/self/status") == (0, "CapEff:\t00000000000000eb\n")
        said = run(held, DEVICES)[1]
        assert said.count("denied") + said.count("not permitted") == 4


def test_the_driver_outlives_what_root_can_send_it(engine: Engine, sandbox_image: str) -> None:
    with root_pool(engine, sandbox_image) as pool:
        held = pool.lease()
        assert run(held, "kill -KILL 1; kill -TERM 1; kill -STOP 1; echo sent") == (0, "sent\n")
        assert run(held, "sleep 60 & kill -KILL -1; wait $!; echo $?")[1].endswith("137\n")
        assert run(held, "echo here") == (0, "here\n")


def test_one_endless_file_ends_at_half_the_disk(engine: Engine, sandbox_image: str) -> None:
    with root_pool(engine, sandbox_image) as pool:
        held = pool.lease()
        code, said = run(held, "cat /dev/zero >/root/file; stat -c %s /root/file")
        assert (code, said.splitlines()[-1]) == (0, str(SMALL_OS.disk_bytes // 2))
        assert "File size limit exceeded" in said
        assert run(held, "cat /dev/zero >>/etc/hosts; rm /root/file; echo on")[1].endswith("on\n")


def test_many_files_end_the_sandbox_by_its_agents_fault(
    engine: Engine, sandbox_image: str, owned: Owned
) -> None:
    with root_pool(engine, sandbox_image) as pool:
        held = pool.lease()
        with pytest.raises(Overrun, match="wrote more than 64 MiB to its disk"):
            run(held, MANY_FILES)
        eventually(lambda: not owned(), within_s=60, text=lambda: "too late")
        pool.release(held, sound=False)
        _unharmed(pool)


@pytest.mark.slow
def test_more_files_than_can_be_counted_end_it_too(
    docker_host: str, sandbox_image: str, owned: Owned
) -> None:
    impatient = Engine("test", docker_host, ask_s=0.1)
    script = "cd /root; for d in $(seq 99); do mkdir $d; touch $d/{1..1000} || exit; done; sleep 40"
    with (
        root_pool(impatient, sandbox_image) as pool,
        pytest.raises(Overrun, match="its files are too many to count"),
    ):
        run(pool.lease(), script, 90)
    eventually(lambda: not owned(), within_s=60, text=lambda: "too late")
    impatient.close()


def test_a_fork_bomb_and_its_children_end_with_their_command(
    engine: Engine, sandbox_image: str
) -> None:
    with root_pool(engine, sandbox_image, replace(SMALL_OS, pids=64)) as pool:
        held = pool.lease()
        assert run(held, "bomb() { bomb | bomb & }; bomb; sleep 60", 3)[0] != 0
        assert len(run(held, "cd /proc; echo [0-9]*")[1].split()) < 10
        pool.release(held, sound=True)
        _unharmed(pool)


def test_a_memory_bomb_ends_before_the_driver_does(engine: Engine, sandbox_image: str) -> None:
    with root_pool(engine, sandbox_image) as pool:
        held = pool.lease()
        code, said = run(held, "python3 -c 'bytearray(1 << 30)'; echo ended with $?")
        assert (code, said.splitlines()[-1]) == (0, "ended with 137")
        assert run(held, "head -c 1G /dev/zero | tail")[0] == 137
        shared = "for i in 1 2 3; do head -c 30M /dev/zero >/dev/shm/$i; done; rm /dev/shm/*"
        assert "No space left" in run(held, shared)[1]
        assert run(held, "echo here") == (0, "here\n")


@pytest.mark.slow
def test_output_without_end_and_deafness_to_term_end_in_time(
    engine: Engine, sandbox_image: str
) -> None:
    with root_pool(engine, sandbox_image) as pool:
        held = pool.lease()
        assert run(held, "head -c 1G /dev/zero | tr '\\0' x", 90) == (0, "x" * 800)
        assert run(held, "trap '' TERM INT HUP; while :; do :; done", 1) == (-9, "")
        assert run(held, "echo here") == (0, "here\n")


def _runs(client: docker.DockerClient, container: str, command: str) -> bool:
    return any(row[-1] == command for row in client.api.top(container)["Processes"])


def test_a_daemon_ends_with_its_container(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient, owned: Owned
) -> None:
    with root_pool(engine, sandbox_image) as pool:
        held = pool.lease()
        daemon = "trap '' TERM; while :; do sleep 1; done"
        assert run(held, f'setsid nohup bash -c "{daemon}" >/dev/null 2>&1 & disown')[0] == 0
        eventually(
            lambda: _runs(docker_client, held.container, f"bash -c {daemon}"),
            within_s=60,
            text=lambda: "the daemon did not start",
        )
        pool.release(held, sound=True)
        assert not owned()
        _unharmed(pool)


def test_a_root_reaches_neither_the_network_nor_the_host(
    engine: Engine, sandbox_image: str
) -> None:
    with root_pool(engine, sandbox_image) as pool:
        held = pool.lease()
        for address in ("1.1.1.1/53", "169.254.169.254/80", "172.17.0.1/22"):
            assert run(held, f"timeout 5 bash -c '>/dev/tcp/{address}'")[0] == 1
        assert run(held, "getent hosts example.com")[0] != 0
        assert run(held, "ls /sys/class/net") == (0, "lo\n")
        assert run(held, "ls /var/run/docker.sock /proc/1/root/var/run/docker.sock")[0] == 2
        assert run(held, "echo 1 >/proc/sys/kernel/sysrq")[0] == 1
        assert run(held, "unshare --user --mount true")[0] != 0
        assert run(held, "find /sys/fs/cgroup -name cgroup.procs -writable") == (0, "")


def test_a_container_killed_from_outside_is_nobodys_fault(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    with root_pool(engine, sandbox_image) as pool:
        held = pool.lease()
        docker_client.api.kill(held.container)
        with pytest.raises(EnvironmentFailure, match="its process ended") as told:
            run(held, "sleep 9")
        assert not isinstance(told.value, Overrun)
        pool.release(held, sound=False)
        _unharmed(pool)


def _unharmed(pool: Sandboxes) -> None:
    held = pool.lease()
    assert run(held, "echo here") == (0, "here\n")
    pool.release(held, sound=True)
