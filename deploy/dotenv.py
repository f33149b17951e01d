"""Add to .env what docker-compose.yml needs and .env lacks: secrets, and the engine's socket.

    python deploy/dotenv.py .env

What stands there stays. The file is readable by its owner alone.
"""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

SECRETS = (
    "POSTGRES_PASSWORD",
    "RABBITMQ_PASSWORD",
    "READER_PASSWORD",
    "POLICY_TOKEN",
    "ENVS_TOKEN",
    "DASHBOARD_TOKEN",
)
SOCKET = "/var/run/docker.sock"


def missing(known: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names and values to add."""
    socket = environ.get("DOCKER_HOST", f"unix://{SOCKET}").removeprefix("unix://")
    group = Path(socket).stat().st_gid if Path(socket).exists() else 0
    for name in SECRETS:
        yield name, secrets.token_urlsafe(24)
    yield "COMPOSE_PROFILES", "cpu"
    if "DOCKER_SOCKET" not in known:
        yield "DOCKER_SOCKET", socket
        yield "DOCKER_GID", str(group)


def main(path: Path, environ: Mapping[str, str]) -> None:
    """Append it."""
    text = path.read_text() if path.exists() else ""
    known = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    added = [f"{name}={value}" for name, value in missing(known, environ) if name not in known]
    begun = "\n" if text and not text.endswith("\n") else ""  # or the first joins its last line
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.fchmod(handle, 0o600)  # also one that stood there
    with os.fdopen(handle, "a") as file:
        file.write(begun + "".join(f"{line}\n" for line in added))


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.environ)
