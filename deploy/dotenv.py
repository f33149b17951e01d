"""Add what docker-compose.yml needs and is not there: secrets in files, variables in .env.

    python deploy/dotenv.py .env

Secrets lie in the folder .secrets beside it, one a file, which containers mount under /run/secrets.
What stands there stays; a secret that an older .env holds is taken from there. Folder and .env are
the owner's alone.
"""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

SECRETS = (
    "POSTGRES_SUPERUSER_PASSWORD",
    "POSTGRES_PASSWORD",
    "READER_PASSWORD",
    "RABBITMQ_PASSWORD",
    "POLICY_TOKEN",
    "ENVS_TOKEN",
    "DASHBOARD_TOKEN",
)
RABBITMQ = "rabbitmq.conf"  # its login, as it reads it
SOCKET = "/var/run/docker.sock"


def missing(known: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names and values to add."""
    socket = (environ.get("DOCKER_HOST") or f"unix://{SOCKET}").removeprefix("unix://")
    group = group_inside(Path(socket).stat(), os.getuid()) if Path(socket).exists() else 0
    yield "COMPOSE_PROFILES", "cpu"
    if "DOCKER_SOCKET" not in known:
        yield "DOCKER_SOCKET", socket
        yield "DOCKER_GID", str(group)


def group_inside(socket: os.stat_result, user: int) -> int:
    """Return the group that a container needs for the socket.

    A rootless engine, whose socket `user` owns, maps the group of that user to 0.
    """
    return 0 if socket.st_uid == user != 0 else socket.st_gid


def write_secrets(folder: Path, known: Mapping[str, str]) -> None:
    """Those that lack. A file can be read by all: in a container its reader is another user."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for name in SECRETS:
        _write(folder / name, known.get(name) or secrets.token_urlsafe(24))
    password = (folder / "RABBITMQ_PASSWORD").read_text()
    _write(folder / RABBITMQ, f"default_user = agentrl\ndefault_pass = {password}\n")


def _write(path: Path, text: str) -> None:
    if not path.exists():
        path.write_text(text)
        path.chmod(0o644)


def main(path: Path, environ: Mapping[str, str]) -> None:
    """Append it."""
    text = path.read_text() if path.exists() else ""
    known = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    write_secrets(path.parent / ".secrets", known)
    added = [f"{name}={value}" for name, value in missing(known, environ) if name not in known]
    begun = "\n" if text and not text.endswith("\n") else ""  # or the first joins its last line
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.fchmod(handle, 0o600)  # also one that stood there
    with os.fdopen(handle, "a") as file:
        file.write(begun + "".join(f"{line}\n" for line in added))


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.environ)
