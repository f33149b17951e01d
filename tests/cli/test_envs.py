"""The verbs `envs …` as a user starts them: one line for what is wrong, no container left."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import docker
import hanging_task
import pytest
import urllib3
from running import eventually

from agentrl.envs import registry
from agentrl.envs.sandbox.docker_engine import OWNER

ITEM = registry.source("dbbench", {"items": 1}).items("train")[0]
CONFIG = """
[run]
name = "test"
[envs]
docker_image = "{image}"
[tasks.dbbench.options]
items = 3
container = true
"""


@contextmanager
def process(config: Path, docker_host: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`agentrl envs serve` and its URL; killed at the end where it still runs."""
    command = [sys.executable, "-m", "agentrl.cli.main", "envs", "serve", str(config)]
    environment = os.environ | {"DOCKER_HOST": docker_host}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as started:
        assert started.stderr is not None
        try:
            line = started.stderr.readline()
            yield started, json.loads(line)["url"]
        finally:
            started.kill()


def containers(client: docker.DockerClient, pid: int, *, running: bool = False) -> list[str]:
    found = client.api.containers(all=not running, filters={"label": OWNER})
    return [each["Id"] for each in found if each["Labels"][OWNER].startswith(f"{pid}.")]


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_no_container_outlives_the_server(
    sign: signal.Signals,
    tmp_path: Path,
    docker_host: str,
    sandbox_image: str,
    docker_client: docker.DockerClient,
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(image=sandbox_image))
    with process(config, docker_host) as (server, url):
        for session_id in range(3):
            body = json.dumps(
                {"session_id": session_id, "index": ITEM.item_id, "custom_task": ITEM.content}
            )
            answer = urllib3.request("POST", f"{url}/api/start_sample", body=body)
            assert answer.status == 200
        assert len(containers(docker_client, server.pid)) >= 3
        server.send_signal(sign)
        code = server.wait(timeout=60)
        assert code == (0 if sign == signal.SIGTERM else -signal.SIGKILL)

    def left(*, running: bool = False) -> bool:
        return bool(containers(docker_client, server.pid, running=running))

    eventually(lambda: not left(running=True), within_s=60, text=lambda: "some still run")
    with ExitStack() as undo:
        if sign == signal.SIGKILL:  # another server removes what was made and never started
            undo.enter_context(process(config, docker_host))
        eventually(lambda: not left(), within_s=60, text=lambda: "some are not removed")


@pytest.mark.slow
def test_a_turn_that_hangs_does_not_keep_the_server(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[tasks.hanging.options]\nitems = 3\n")
    command = [sys.executable, str(Path(hanging_task.__file__)), "envs", "serve", str(config)]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server,
        ThreadPoolExecutor(1) as thread,
    ):
        try:
            assert server.stderr is not None
            url = json.loads(server.stderr.readline())["url"]
            start = {"session_id": 1, "index": ITEM.item_id, "custom_task": ITEM.content}
            turn = {"session_id": 1, "messages": [{"role": "assistant", "content": "?"}]}
            urllib3.request("POST", f"{url}/api/start_sample", body=json.dumps(start))
            thread.submit(
                urllib3.request, "POST", f"{url}/api/interact", body=json.dumps(turn), retries=False
            )
            while "hangs" not in server.stderr.readline():
                assert server.poll() is None
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=60) == 0
        finally:
            server.kill()
