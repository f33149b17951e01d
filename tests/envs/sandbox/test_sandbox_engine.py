"""Engines that lack an image, stop, or bound disks by themselves.

docker-py leaves sockets open where nobody answers: that one warning is not counted here.
"""

import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest
from docker_engines import OwnEngine, own_engine
from sandbox_programs import SMALL, SMALL_OS, ask, python, root_pool, run

from agentrl.core.errors import ConfigError, EnvironmentFailure
from agentrl.envs.sandbox.channel import Overrun
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import Sandboxes, Spec

QUOTA_DISK = 3 << 30  # bytes of a file system that bounds parts of itself


@pytest.fixture
def stoppable(
    tmp_path: Path, sandbox_image: str, docker_client: docker.DockerClient
) -> Iterator[OwnEngine]:
    if os.getuid() or not shutil.which("dockerd"):
        pytest.skip("needs dockerd and root")
    with own_engine(tmp_path, tmp_path / "root", sandbox_image, docker_client) as engine:
        yield engine


def test_a_missing_image_or_engine_is_one_line_with_its_mend(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="has no image no/such:image") as missing:
        Sandboxes(engine, Spec("no/such:image", python()))
    assert missing.value.hint.startswith("docker pull no/such:image, or build deploy/images/sand")
    assert "\n" not in missing.value.hint
    with pytest.raises(ConfigError, match="no Docker engine answers at tcp://127") as stopped:
        Engine("test", "tcp://127.0.0.1:9")
    assert str(stopped.value).endswith("tcp://127.0.0.1:9: Connection refused")
    assert "DOCKER_HOST" in stopped.value.hint


def test_an_image_of_ours_is_built_under_its_own_name(engine: Engine) -> None:
    with pytest.raises(ConfigError) as missing:
        engine.images.require("agentrl-os:latest")
    wanted = "docker build -t agentrl-os:latest -f deploy/images/os.Dockerfile deploy/images"
    assert missing.value.hint == wanted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_socket_where_the_engine_should_be_is_told_in_the_systems_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as stopped:
        Engine("test", f"unix://{tmp_path}/docker.sock")
    told = str(stopped.value)
    del stopped
    gc.collect()  # docker-py's open socket, here and not in another test
    assert told.endswith("/docker.sock: No such file or directory")


def test_an_image_that_goes_missing_later_fails_the_lease_alone(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    docker_client.api.tag(sandbox_image, "agentrl-test", "passing")
    with closing(Sandboxes(engine, Spec("agentrl-test:passing", python(), SMALL))) as pool:
        docker_client.api.remove_image("agentrl-test:passing")
        with pytest.raises(EnvironmentFailure, match="No such image"):
            pool.lease()
        docker_client.api.tag(sandbox_image, "agentrl-test", "passing")
        try:
            assert ask(pool.lease(), "1 + 1") == "2"
        finally:
            docker_client.api.remove_image("agentrl-test:passing")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_freezes_and_ends_fails_episodes_and_serves_the_next(
    stoppable: OwnEngine, sandbox_image: str
) -> None:
    engine = Engine("test", stoppable.url, timeout_s=15, ask_s=2)
    with closing(engine), closing(Sandboxes(engine, Spec(sandbox_image, python(), SMALL))) as pool:
        held = pool.lease()
        stoppable.signal(signal.SIGSTOP)
        with pytest.raises(EnvironmentFailure, match="no answer within 1 s"):
            ask(held, "1 + 1", timeout_s=1)
        with pytest.raises(EnvironmentFailure, match=r"Docker engine: create: .*timed out"):
            pool.lease()
        pool.release(held, sound=False)
        stoppable.signal(signal.SIGCONT)
        held = pool.lease()
        assert ask(held, "1 + 1") == "2"
        stoppable.end()
        with pytest.raises(EnvironmentFailure, match="its process ended") as told:
            ask(held, "1 + 1")
        assert not isinstance(told.value, Overrun)
        pool.release(held, sound=False)
        with pytest.raises(EnvironmentFailure, match="Docker engine: create"):
            pool.lease()
        stoppable.start()
        assert ask(pool.lease(), "1 + 1") == "2"
        engine.reap()
        assert len(_containers(stoppable)) == 1
    assert not _containers(stoppable)
    del told
    gc.collect()  # docker-py's open sockets, here and not in another test


@pytest.mark.slow
def test_an_engine_with_quotas_bounds_the_disk_itself(
    tmp_path: Path, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    if os.getuid() or not (shutil.which("dockerd") and shutil.which("mkfs.btrfs")):
        pytest.skip("needs dockerd, btrfs and root")
    disk, root = tmp_path / "disk", tmp_path / "root"
    with disk.open("wb") as file:
        file.truncate(QUOTA_DISK)
    root.mkdir()
    subprocess.run(["mkfs.btrfs", "-q", disk], check=True, capture_output=True)
    mounted = subprocess.run(["mount", "-o", "loop", disk, root], check=False)
    if mounted.returncode:
        pytest.skip("needs to mount btrfs")
    try:
        with own_engine(tmp_path, root, sandbox_image, docker_client) as own:
            engine = Engine("test", own.url)
            with closing(engine), root_pool(engine, sandbox_image, SMALL_OS) as pool:
                held = pool.lease()
                assert engine.quota
                fill = "for i in $(seq 9); do head -c 16M /dev/zero >/root/$i; done; du -sm /root"
                said = run(held, fill)[1]
                assert "Disk quota exceeded" in said
                assert 40 <= int(said.split()[-2]) <= 64
                assert run(held, "rm /root/*; echo here") == (0, "here\n")
    finally:
        subprocess.run(["umount", "--lazy", root], check=True)


def _containers(engine: OwnEngine) -> list[str]:
    with closing(docker.APIClient(base_url=engine.url)) as client:
        return [each["Id"] for each in client.containers(all=True)]
