"""docker-compose.yml brought up for real, with images built from one base and without a network."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container
from running import ROOT, eventually

from agentrl.envs.sandbox.docker_engine import RUN

CACHE = Path(os.environ.get("AGENTRL_CACHE", "/var/tmp/agentrl-cache"))
ASKED = 5  # times, where an answer does not come whole
WHOLE = "END OF ROWS"
EXTRAS = ("tasks", "tracing")  # the Dockerfile's own
CODE = (
    *("broker", "checkpoints", "cli", "configs", "core", "dashboard", "db", "envs"),
    *("models/tiny", "models/tiny-careless", "ops", "requirements"),
    *("serving", "src", "trainer", "workers"),
)


def wheels() -> Path:
    """Return a folder with the wheels that the images install, filled once for each set of them."""
    locks = [ROOT / "requirements" / name for name in ("torch.lock", "dev.lock", "bfcl.lock")]
    script = [str(ROOT / "deploy/images/requirements.py"), str(ROOT / "pyproject.toml")]
    command = [sys.executable, *script, *EXTRAS, "dashboard"]
    asked = subprocess.check_output(command, text=True)
    told = asked.encode() + b"".join(path.read_bytes() for path in locks)
    folder = CACHE / f"wheels-{hashlib.sha256(told).hexdigest()[:12]}"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    partial = CACHE / f"{folder.name}.{os.getpid()}"
    limits = [flag for path in locks for flag in ("-c", str(path))]
    download = [sys.executable, "-m", "pip", "download", "-q", "-d", str(partial), *limits]
    subprocess.run([*download, "pip", *asked.split()], check=True)
    subprocess.run([*download, "--no-deps", "bfcl-eval"], check=True)
    partial.rename(folder)
    return folder


def context(folder: Path) -> Path:
    """Return a build context: what the Dockerfile copies, and the wheels."""
    for name in CODE:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
    for name in (".dockerignore", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    for wheel in wheels().iterdir():
        os.link(wheel, folder / "deploy/images/pip" / wheel.name)
    return folder


class Stack:
    """One project of docker-compose; its variables lie in `folder`, its images are the test's."""

    def __init__(self, engine: docker.DockerClient, url: str, base: str, folder: Path) -> None:
        self.engine = engine
        self.project = f"agentrl-test-{os.getpid()}"
        self._url = url
        self._base = base
        self._folder = folder
        self._file = folder / ".env"
        self.secrets = folder / ".secrets"
        write = [sys.executable, str(ROOT / "deploy/dotenv.py"), str(self._file)]
        subprocess.run(write, env=os.environ | {"DOCKER_HOST": url}, check=True)
        self.set(SECRETS=str(self.secrets))

    def set(self, **variables: str) -> None:
        """Add variables of docker-compose.yml."""
        with self._file.open("a") as file:
            file.write("".join(f"{name}={value}\n" for name, value in variables.items()))

    def build(self) -> None:
        """Every image; those of services come from the cache where they were built before."""
        sources = context(self._folder / "context")
        offline = ["--network=none", "--build-arg", "PIP_ARGS=--no-index --find-links /pip"]
        for target in ("dashboard", "cpu"):
            name = f"agentrl-test:{target}"
            arguments = [*offline, "-t", name, "--target", target]
            self._build(arguments, sources / "deploy/images/Dockerfile", sources)
        for target in ("postgres", "rabbitmq"):
            self._service_image(target)
        sandboxes = ROOT / "deploy/images"
        self._build(["-t", "agentrl-test-sandbox"], sandboxes / "sandbox.Dockerfile", sandboxes)
        self.set(
            AGENTRL_IMAGE="agentrl-test",
            POSTGRES_IMAGE="agentrl-test-postgres",
            RABBITMQ_IMAGE="agentrl-test-rabbitmq",
            SANDBOX_IMAGE="agentrl-test-sandbox",
        )

    def compose(self, *arguments: str) -> str:
        """Its output. Fails with what it said."""
        command = ["docker-compose", "-p", self.project, "--env-file", str(self._file)]
        told = subprocess.run(
            [*command, "--project-directory", str(ROOT), *arguments],
            cwd=ROOT,
            env=os.environ | {"DOCKER_HOST": self._url, "COMPOSE_PROFILES": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, f"{told.stdout[-3000:]}\n{told.stderr[-3000:]}"
        return told.stdout

    def containers(self, service: str = "", *, all: bool = False) -> list[Container]:  # noqa: A002
        labels = [f"com.docker.compose.project={self.project}"]
        if service:
            labels.append(f"com.docker.compose.service={service}")
        found: list[Container] = self.engine.containers.list(
            all=all, filters={"label": labels}, ignore_removed=True
        )
        return found

    def sandboxes(self, *, all: bool = False) -> list[Container]:  # noqa: A002
        """Those of its episodes, which come and go."""
        found: list[Container] = self.engine.containers.list(
            all=all, filters={"label": f"{RUN}={self.project}"}, ignore_removed=True
        )
        return found

    def health(self) -> dict[str, str]:
        """Of every container that is probed, by its name."""
        found = {}
        for each in self.containers():
            state = each.attrs["State"]
            if "Health" in state:
                found[each.name] = state["Health"]["Status"]
        return found

    def sql(self, query: str) -> list[list[str]]:
        """The rows of a query, as the store's owner; asked again where the answer got lost."""
        password = "PGPASSWORD=$(cat /run/secrets/POSTGRES_PASSWORD)"
        ask = f'{password} psql -h 127.0.0.1 -U agentrl -At -F "|" -c "$0"'
        (postgres,) = self.containers("postgres")
        for _ in range(ASKED):
            code, output = postgres.exec_run(["/bin/sh", "-c", f"{ask} && echo '{WHOLE}'", query])
            assert code == 0, output.decode()
            *rows, last = output.decode().splitlines() or [""]
            if last == WHOLE:
                return [row.split("|") for row in rows]
        raise AssertionError(f"no answer to {query}: {output!r}")

    def number(self, query: str) -> int:
        return int(self.sql(query)[0][0])

    def until(self, what: Callable[[], object], within_s: float) -> None:
        eventually(what, within_s=within_s, text=self.told)

    def told(self) -> str:
        """States and last words of all containers."""
        lines = []
        for each in self.containers(all=True):
            words = each.logs(tail=8).decode(errors="replace")
            health = json.dumps(each.attrs["State"].get("Health", {}).get("Log", [])[-1:])
            lines.append(f"== {each.name} {each.status} {health[-600:]}\n{words}")
        return "\n".join(lines)

    def left(self) -> list[Any]:
        """Containers, networks and volumes of the project."""
        mine = {"label": f"com.docker.compose.project={self.project}"}
        return [
            *self.engine.containers.list(all=True, filters=mine),
            *self.engine.networks.list(filters=mine),
            *self.engine.volumes.list(filters=mine),
        ]

    def _service_image(self, target: str) -> None:
        name, folder = f"agentrl-test-{target}", ROOT / "tests/deploy"
        files = ("services.Dockerfile", f"{target}.sh")
        told = b"".join((folder / file).read_bytes() for file in files)
        saved = CACHE / f"{name}-{hashlib.sha256(told).hexdigest()[:12]}.tar"
        if saved.exists():
            self._docker("load", "-q", "-i", str(saved))
            return
        arguments = ["--target", target, "-t", name]
        self._build(arguments, folder / "services.Dockerfile", folder)
        partial = saved.with_suffix(f".{os.getpid()}")
        self._docker("save", "-o", str(partial), name)
        partial.rename(saved)

    def _build(self, arguments: Sequence[str], file: Path, where: Path) -> None:
        base = ["--build-arg", f"BASE={self._base}"]
        self._docker("build", "-q", *base, *arguments, "-f", str(file), str(where))

    def _docker(self, *arguments: str) -> None:
        told = subprocess.run(
            ["docker", *arguments],
            env=os.environ | {"DOCKER_HOST": self._url, "DOCKER_BUILDKIT": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, f"{told.stdout[-3000:]}\n{told.stderr[-3000:]}"
