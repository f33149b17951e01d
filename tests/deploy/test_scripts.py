"""What `make up` and the Dockerfile run."""

import importlib.metadata
import os
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, str(ROOT / "deploy" / script), *arguments]
    return subprocess.check_output(command, text=True, env=environment)


def variables(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def test_an_empty_address_of_docker_is_none(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    run("dotenv.py", str(path), DOCKER_HOST="")
    assert variables(path)["DOCKER_SOCKET"] == "/var/run/docker.sock"


def test_an_environment_file_is_the_owners_alone_and_keeps_what_stands(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    run("dotenv.py", str(path), DOCKER_HOST="unix:///nowhere/docker.sock")
    first = variables(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert first["DOCKER_SOCKET"] == "/nowhere/docker.sock"
    assert not [name for name in first if name.endswith(("PASSWORD", "TOKEN"))]
    folder = tmp_path / ".secrets"
    assert folder.stat().st_mode & 0o777 == 0o700
    secrets = {each.name: each.read_text() for each in folder.iterdir()}
    rabbitmq = secrets.pop("rabbitmq.conf")
    assert rabbitmq.splitlines()[1] == f"default_pass = {secrets['RABBITMQ_PASSWORD']}"
    assert len(set(secrets.values())) == len(secrets) == 7
    assert min(map(len, secrets.values())) >= 32

    run("dotenv.py", str(path))
    assert variables(path) == first
    assert (folder / "ENVS_TOKEN").read_text() == secrets["ENVS_TOKEN"]


def test_a_file_of_an_earlier_version_gets_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("POSTGRES_PASSWORD=mine\n# a comment\nDASHBOARD_PORT=9000")
    path.chmod(0o644)
    run("dotenv.py", str(path))
    lines = path.read_text().splitlines()
    assert lines[:3] == ["POSTGRES_PASSWORD=mine", "# a comment", "DASHBOARD_PORT=9000"]
    assert {line.split("=")[0] for line in lines[3:]} >= {"COMPOSE_PROFILES", "DOCKER_SOCKET"}
    assert (tmp_path / ".secrets/POSTGRES_PASSWORD").read_text() == "mine"
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_group_of_a_rootless_engines_socket_is_root_inside() -> None:
    """Its user namespace maps our user and group to 0; the engine of root keeps the group."""
    group = runpy.run_path(str(ROOT / "deploy/dotenv.py"))["group_inside"]

    def socket_of(user: int) -> os.stat_result:
        return os.stat_result((0o140660, 0, 0, 1, user, 998, 0, 0, 0, 0))

    assert group(socket_of(1000), user=1000) == 0
    assert group(socket_of(0), user=1000) == 998
    assert group(socket_of(0), user=0) == 998


def test_extras_that_name_extras_are_followed_and_nothing_is_asked_twice(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\ndependencies = ["rich>=13"]\n[project.optional-dependencies]\n'
        'db = ["psycopg[binary]>=3.2", "rich>=13"]\nall = ["agentrl-system[db,web]", "torch"]\n'
        'web = ["streamlit"]\n'
    )
    asked = run("images/requirements.py", str(project), "all").splitlines()
    assert asked == ["psycopg[binary]>=3.2", "rich>=13", "streamlit", "torch"]


def test_the_dashboards_image_asks_for_no_torch() -> None:
    asked = run(
        "images/requirements.py", str(ROOT / "pyproject.toml"), "--group", "dashboard-image"
    )
    assert "streamlit" in asked
    assert not {"torch", "transformers", "celery", "pika", "docker"} & {
        line.split(">")[0] for line in asked.splitlines()
    }


def test_the_dashboards_image_asks_for_nothing_that_the_package_does_not() -> None:
    script, project = "images/requirements.py", str(ROOT / "pyproject.toml")
    image = run(script, project, "--group", "dashboard-image").splitlines()
    assert set(image) <= set(run(script, project, "dashboard").splitlines())


def test_an_image_knows_the_packages_version_and_all_it_requires(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    run("images/requirements.py", str(ROOT / "pyproject.toml"), "--metadata", str(tmp_path))
    (found,) = importlib.metadata.distributions(path=[str(tmp_path)])
    assert (found.name, found.version) == (project["name"], project["version"])
    extras = project["optional-dependencies"]
    of_extras = [f'{each}; extra == "{name}"' for name in extras for each in extras[name]]
    assert found.requires == [*project["dependencies"], *of_extras]
