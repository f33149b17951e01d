"""What trainings of the experiment leave: a JSON file each, from which alone reports are made."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from core.errors import ConfigError


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what a file holds."""


class Design(Finding, frozen=True):
    """What every arm shares. `tokens`: sampled ones that a training may use.

    `refresh`: updates between two re-loads of the lagged track. Final policies are measured on
    `items` held-out items a task with `attempts` each; the acting policy `checks` times on the way,
    on `check_items` items with `check_attempts`. `config`: the sections that
    matter, as they took effect.
    """

    tokens: int
    refresh: int
    items: int
    attempts: int
    checks: int
    check_items: int
    check_attempts: int
    config: dict[str, Any]


class Point(Finding, frozen=True):
    """After one round of groups and its update, if it made one (`version` moved then).

    `tokens`: sampled so far. By task: `success` of the round's episodes, `spread`: the share of its
    groups that had one; `states`, `histories`: distinct ones so far. `tracks`: the share of the
    round's sampled tokens by track. `metrics`: of the update, as the trainer records them.
    """

    version: int
    tokens: int
    success: dict[str, float]
    spread: dict[str, float]
    states: dict[str, int]
    histories: dict[str, int]
    tracks: dict[str, float]
    metrics: dict[str, float]


class Check(Finding, frozen=True):
    """The policy being trained, on held-out items, sampled at the temperature of training."""

    tokens: int
    version: int
    success: dict[str, float]


class Skill(Finding, frozen=True):
    """One task after training. `acting`: `policy`, the trained one; `mixture`, as in training.

    By item: `solved` attempts of the design's, `histories`: distinct ones in all attempts.
    """

    acting: str
    task: str
    solved: list[int]
    histories: list[int]


class Training(Finding, frozen=True):
    """One arm with one seed. `within`: mean distinct histories of a group, by task."""

    design: Design
    arm: str
    seed: int
    seconds: float
    episodes: int
    points: list[Point]
    checks: list[Check]
    skills: list[Skill]
    within: dict[str, float]


class Lag(Finding, frozen=True):
    """Steps sampled by version `sampled`, scored by version `sampled + lag`, one task.

    `divergence`: mean exact KL(μ ‖ π) a token, nats; `effective`: sample size as a share of the
    tokens, of weights π/μ of tokens; `largest`: weight; `tokens`: how many.
    """

    task: str
    sampled: int
    lag: int
    divergence: float
    effective: float
    largest: float
    tokens: int


class Mixture(Finding, frozen=True):
    """The last policy and one `lag` updates older (0: alone), each drawn for half of the steps.

    By held-out item of the task: as in Skill.
    """

    task: str
    lag: int
    solved: list[int]
    histories: list[int]


class Drift(Finding, frozen=True):
    """One long training of the arm `current`, its trajectories scored by later checkpoints."""

    design: Design
    seed: int
    seconds: float
    updates: int
    lags: list[Lag]
    mixtures: list[Mixture]


F = TypeVar("F", Training, Drift)


def keep(path: Path, found: Training | Drift) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(msgspec.json.encode(found) + b"\n")
    partial.rename(path)


def read(directory: Path, prefix: str, kind: type[F]) -> list[F]:
    """All files of a kind, by name.

    Raises ConfigError for one that is none, or holds another arm or seed than its name says.
    """
    found = []
    for path in sorted(directory.glob(f"{prefix}-*.json")):
        try:
            one = msgspec.json.decode(path.read_bytes(), type=kind)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}: not a finding: {error}", mend="remove it") from error
        if path.name != name(one):
            raise ConfigError(f"{path}: holds what belongs into {name(one)}", mend="remove it")
        found.append(one)
    return found


def name(found: Training | Drift) -> str:
    """The file of a finding."""
    if isinstance(found, Drift):
        return f"drift-{found.seed}.json"
    return f"training-{found.arm}-{found.seed}.json"


def differing(found: Mapping[str, Design]) -> str:
    """The name of a file whose design is another than the first one's; empty where all agree."""
    designs = list(found.items())
    return next((each for each, design in designs if design != designs[0][1]), "")
