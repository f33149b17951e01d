"""The whole stack in containers: built without a network, trained, hurt, scaled, and gone."""

import http.client
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import pytest
from compose_stack import Stack
from docker.models.containers import Container
from running import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

LIVE_WORKERS = (
    "SELECT count(*) FROM workers WHERE ended_at IS NULL"
    " AND lease_until > extract(epoch FROM clock_timestamp())"
)
VERSION = "SELECT coalesce(max(version), 0) FROM runs"


@pytest.fixture
def stack(
    docker_client: docker.DockerClient, docker_host: str, sandbox_image: str, tmp_path: Path
) -> Iterator[Stack]:
    """Built, with small updates; nothing runs yet."""
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")
    made = Stack(docker_client, docker_host, sandbox_image, tmp_path)
    configs = tmp_path / "configs"
    configs.mkdir()
    text = (ROOT / "configs" / "compose.toml").read_text()
    text = text.replace('name = "compose"', f'name = "{made.project}"', 1)
    small = "[dispatch]\ngroups_per_update = 2\ngroup_size = 4\n\n[trainer]\nsnapshot_every = 1\n"
    (configs / "compose.toml").write_text(f"{text}\n{small}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        made.set(CONFIGS=str(configs), DASHBOARD_PORT=str(free.getsockname()[1]))
    made.set(DATA=str(tmp_path / "data"))
    made.build()
    try:
        yield made
    finally:
        made.compose("down", "-v", "--remove-orphans", "-t", "20")


def test_the_stack_trains_recovers_scales_and_leaves_nothing(stack: Stack) -> None:
    stack.compose("up", "-d", "--no-build", "--scale", "worker=2")
    stack.until(lambda: stack.number(VERSION) >= 3, within_s=900)
    assert len(stack.containers("worker")) == 2
    stack.until(lambda: set(stack.health().values()) == {"healthy"}, within_s=300)

    _the_dashboard_answers(stack)
    _the_dashboard_reaches_the_database_alone(stack)
    _only_the_env_server_holds_the_socket(stack)
    _no_role_is_a_superuser_and_no_environment_holds_a_secret(stack)
    _what_is_killed_comes_back(stack, "trainer")
    _what_is_killed_comes_back(stack, "worker")

    for workers in (4, 2):
        stack.compose("up", "-d", "--no-build", "--no-recreate", "--scale", f"worker={workers}")
        stack.until(lambda n=workers: stack.number(LIVE_WORKERS) == n, within_s=300)
    later = stack.number(VERSION) + 1
    stack.until(lambda: stack.number(VERSION) >= later, within_s=300)
    assert stack.number("SELECT count(*) FROM accounting") == 0, stack.sql("TABLE accounting")

    _what_has_ended_with_its_run_rests(stack)

    stack.compose("down", "-v", "-t", "60")
    assert stack.left() == []
    stack.until(lambda: not stack.sandboxes(all=True), within_s=60)  # the engine removes them


def _the_dashboard_answers(stack: Stack) -> None:
    (dashboard,) = stack.containers("dashboard")
    port = dashboard.attrs["NetworkSettings"]["Ports"]["8501/tcp"][0]["HostPort"]
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    connection.request("GET", "/")
    assert b"streamlit" in connection.getresponse().read().lower()
    connection.close()


def _the_dashboard_reaches_the_database_alone(stack: Stack) -> None:
    (dashboard,) = stack.containers("dashboard")

    def inside(script: str) -> tuple[int, str]:
        code, output = dashboard.exec_run(["python", "-c", script])
        return code, output.decode()

    reach = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 4)"
    for host, port_there in (("rabbitmq", 5672), ("envs", 7100), ("policy", 7000)):
        code, said = inside(f"import sys; sys.argv[1:] = ['{host}', '{port_there}']; {reach}")
        assert code != 0, f"the dashboard reaches {host}"
        assert "Name or service" in said or "name resolution" in said, said
    assert inside("import torch")[0] != 0, "the dashboard's image has torch"
    assert inside("import os; assert os.getuid() == 10001")[0] == 0

    asked = "import os, psycopg; from agentrl.core.config.secrets import fill_secrets;"
    asked += "u = fill_secrets(os.environ['AGENTRL_STORE_URL'], 'it').replace('+psycopg', '');"
    asked += "c = psycopg.connect(u); print(c.execute('SELECT name FROM runs').fetchall());"
    code, said = inside(f"{asked} c.execute('DELETE FROM alarms')")  # noqa: S608 - a constant
    assert stack.project in said
    assert code != 0
    assert "permission denied" in said


def _no_role_is_a_superuser_and_no_environment_holds_a_secret(stack: Stack) -> None:
    roles = stack.sql(
        "SELECT rolname, rolsuper, rolcreaterole FROM pg_roles WHERE rolname ~ 'agent'"
    )
    assert sorted(roles) == [["agentrl", "f", "f"], ["agentrl_reader", "f", "f"]]
    secrets = {path.read_text().strip() for path in stack.secrets.iterdir()}
    for each in stack.containers(all=True):
        told = str(each.attrs["Config"])
        assert not [secret for secret in secrets if secret in told], each.name


def _only_the_env_server_holds_the_socket(stack: Stack) -> None:
    holders = {
        each.labels["com.docker.compose.service"]
        for each in stack.containers()
        for mount in each.attrs["Mounts"]
        if mount["Destination"].endswith("docker.sock")
    }
    assert holders == {"envs"}
    found: list[Container] = []
    stack.until(lambda: found or found.extend(stack.sandboxes()), within_s=120)
    assert {each.attrs["HostConfig"]["NetworkMode"] for each in found} == {"none"}


def _what_is_killed_comes_back(stack: Stack, service: str) -> None:
    """Its process is killed as the kernel would; the engine, not a person, starts it again."""
    victim = stack.containers(service)[0]
    version, restarts = stack.number(VERSION), victim.attrs["RestartCount"]
    os.kill(victim.attrs["State"]["Pid"], signal.SIGKILL)

    def back() -> bool:
        victim.reload()
        state = victim.attrs["State"]
        healthy = state.get("Health", {}).get("Status") == "healthy"
        return bool(victim.attrs["RestartCount"] > restarts and state["Running"] and healthy)

    stack.until(back, within_s=300)
    stack.until(lambda: stack.number(VERSION) >= version + 1, within_s=300)


def _what_has_ended_with_its_run_rests(stack: Stack) -> None:
    """Also where it is started once more, as `make up` does; the others stay, and are well."""
    roles = ("dispatcher", "trainer")

    def ended() -> Mapping[str, str]:
        """When each ended, well."""
        for role in roles:
            stack.until(lambda name=role: _state(stack, name)["Status"] == "exited", within_s=90)
        states = {role: _state(stack, role) for role in roles}
        assert {role: states[role]["ExitCode"] for role in roles} == dict.fromkeys(roles, 0)
        return {role: states[role]["FinishedAt"] for role in roles}

    restarts = [_state(stack, role)["RestartCount"] for role in roles]
    stop = ["agentrl", "run", "stop", "configs/compose.toml"]
    code, said = stack.containers("recorder")[0].exec_run(stop)
    assert code == 0, said.decode()
    first = ended()
    _the_dashboard_answers(stack)
    assert [_state(stack, role)["RestartCount"] for role in roles] == restarts
    stack.compose("up", "-d", "--no-build", "--no-recreate", "--scale", "worker=2")
    again = ended()
    assert all(again[role] > first[role] for role in roles), "`up` has not started them"
    assert {_state(stack, role)["RestartCount"] for role in roles} == {0}, "of the second start"
    told = ["run", "--rm", "--no-deps", "-T", "migrate", 'agentrl status "$CONFIG"']
    assert stack.compose(*told).startswith(f"run {stack.project} is over (stopped: by command)")
    assert len(stack.containers("worker")) == 2
    stack.until(lambda: set(stack.health().values()) == {"healthy"}, within_s=120)


def _state(stack: Stack, service: str) -> Mapping[str, Any]:
    (found,) = stack.containers(service, all=True)
    return found.attrs["State"] | {"RestartCount": found.attrs["RestartCount"]}
