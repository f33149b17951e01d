"""A task.toml as Harbor reads it (harbor.models.task.config), and what of it cannot run here.

Harbor's values are converted as pydantic does: "900" is a number, unknown keys are ignored.
"""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

NetworkMode = Literal["no-network", "public", "allowlist"]
User = str | int | None
SIZES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}  # in MiB
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*\Z")
TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
MAIN = "main"  # the one service of a task without Docker Compose
ROOT = (None, "root", "0", 0)


class InvalidSettings(ValueError):
    """A task.toml that Harbor refuses, too."""


class Author(msgspec.Struct, frozen=True):
    name: str
    email: str | None = None


class Package(msgspec.Struct, frozen=True):
    name: str
    version: Annotated[str, Meta(min_length=1)] | None = None
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []


class Agent(msgspec.Struct, frozen=True):
    """`timeout_sec`: None: no limit."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    timeout_sec: float | None = None
    user: User = None


class Environment(msgspec.Struct, frozen=True):
    """`network_mode`: None where the file says nothing; Harbor then takes `public`."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None
    workdir: str | None = None
    allow_internet: bool | None = None


class Verifier(msgspec.Struct, frozen=True):
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    timeout_sec: float = 600.0
    env: dict[str, str] = {}
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[dict[str, Any]] = []


class Solution(msgspec.Struct, frozen=True):
    env: dict[str, str] = {}


class Artifact(msgspec.Struct, frozen=True):
    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None


class Settings(msgspec.Struct, frozen=True):
    """A whole task.toml."""

    schema_version: str = "1.4"
    task: Package | None = None
    metadata: dict[str, Any] = {}
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[dict[str, Any]] | None = None
    artifacts: list[str | Artifact] = []


def read(text: str) -> Settings:
    """Parse a task.toml. Raises InvalidSettings that names the key."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(str(error)) from error
    if "version" in raw:
        raw.setdefault("schema_version", raw.pop("version"))
    _migrate(raw.get("environment"))
    verifier = raw.get("verifier")
    _migrate(verifier.get("environment") if isinstance(verifier, dict) else None)
    try:
        found = msgspec.convert(raw, Settings, strict=False)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        raise InvalidSettings(f"{path.rstrip('`')}: {reason}" if path else reason) from error
    for problem in _problems(found):
        raise InvalidSettings(problem)
    return found


def unsupported(given: Settings) -> Iterator[str]:
    """Name what Harbor accepts and a task here cannot have."""
    environment, verifier = given.environment, given.verifier
    services = (each.service for each in given.artifacts if isinstance(each, Artifact))
    unmet = {
        "[[steps]]": given.steps,
        'environment.os = "windows"': environment.os == "windows",
        "[[verifier.collect]]": verifier.collect,
        "an environment of the verifier's own": verifier.environment
        or verifier.environment_mode == "separate",
        "an artifact of another service": any(each not in (None, MAIN) for each in services),
    }
    for name in ("gpus", "tpu", "mcp_servers", "healthcheck"):
        unmet[f"environment.{name}"] = getattr(environment, name)
    for name in ("memory_mb", "storage_mb", "cpus"):
        value = getattr(environment, name)
        unmet[f"environment.{name} = {value}"] = value is not None and value <= 0
    for name in ("environment", "agent", "verifier"):
        mode, user = (getattr(getattr(given, name), key, None) for key in ("network_mode", "user"))
        unmet[f'{name}.network_mode = "allowlist"'] = mode == "allowlist"
        unmet[f"{name}.user = {user!r}"] = user not in ROOT
    return (what for what, present in unmet.items() if present)


def _migrate(environment: Any) -> None:
    """Replace keys that Harbor still reads. Raises InvalidSettings."""
    if not isinstance(environment, dict):
        return
    if isinstance(environment.get("os"), str):
        environment["os"] = environment["os"].lower()
    for old in ("memory", "storage"):
        size = environment.pop(old, None)
        if isinstance(size, str):
            mib = _mib(size)
            if environment.setdefault(f"{old}_mb", mib) != mib:
                raise InvalidSettings(f"environment.{old} and environment.{old}_mb differ")


def _mib(size: str) -> int:
    number, unit = size.strip().upper()[:-1], size.strip().upper()[-1:]
    try:
        return int(float(number) * SIZES[unit])
    except (KeyError, ValueError, OverflowError) as error:
        raise InvalidSettings(f"{size!r} is no size such as '2G' or '512M'") from error


def _problems(given: Settings) -> Iterator[str]:
    """Yield what Harbor's validators refuse."""
    if given.task is not None and (not NAME.match(given.task.name) or ".." in given.task.name):
        yield f"task.name: {given.task.name!r} is not ORGANISATION/NAME"
    environments = {
        "environment": given.environment,
        "verifier.environment": given.verifier.environment,
    }
    for name, each in environments.items():
        if each is not None:
            if each.cpus is not None and not math.isfinite(each.cpus):
                yield f"{name}.cpus: not a finite number"
            if each.allowed_hosts and each.network_mode != "allowlist":
                yield f"{name}.allowed_hosts: only with network_mode = 'allowlist'"
    for section in ("agent", "verifier"):
        phase: Agent | Verifier = getattr(given, section)
        hosts = phase.allowed_hosts
        if phase.network_mode != "allowlist" and (
            hosts or (hosts is not None and not phase.network_mode)
        ):
            yield f"{section}.allowed_hosts: only with network_mode = 'allowlist'"
    if given.verifier.environment_mode == "shared" and given.verifier.environment is not None:
        yield "verifier.environment: not with environment_mode = 'shared'"
    for artifact in given.artifacts:
        yield from _artifact_problems(artifact)


def _artifact_problems(artifact: str | Artifact) -> Iterator[str]:
    source = artifact if isinstance(artifact, str) else artifact.source
    if ".." in PurePosixPath(source).parts:
        yield f"artifacts: {source!r} contains '..'"
    to = None if isinstance(artifact, str) else artifact.destination
    if to:
        path = PurePosixPath(to)
        outside = "\\" in to or path.is_absolute() or not path.parts or ".." in path.parts
        if outside or to.rstrip("/") == "manifest.json":
            yield f"artifacts: destination {to!r} is no path below the folder of artifacts"


def network(given: Settings, phase: Agent | Verifier) -> bool | None:
    """Return whether a phase has a network; None where the file says nothing."""
    mode = phase.network_mode or given.environment.network_mode
    if mode is None and given.environment.allowed_hosts is None:
        return given.environment.allow_internet
    return None if mode is None else mode == "public"


def fill(env: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Replace values that are `${NAME}` or `${NAME:-default}`. Raises KeyError with the name."""
    filled = {}
    for key, value in env.items():
        match = TEMPLATE.fullmatch(value)
        if match and match[1] not in known and match[2] is None:
            raise KeyError(match[1])
        filled[key] = known.get(match[1], match[2] or "") if match else value
    return filled
