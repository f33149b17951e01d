"""Results of trainings: one JSON file each. Reports are made from these files only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentrl.core.errors import ConfigError


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what a file holds."""


class SavedFinding(Finding, frozen=True):
    """What one file holds. `design`: what all files of a study agree on."""

    design: Any

    @property
    def file(self) -> str:
        """The file's name."""
        raise NotImplementedError


class Design(Finding, frozen=True):
    """What every arm shares. `tokens`: sampled ones that a training may use.

    `refresh`: updates between two re-loads of the lagged track. Final policies are measured on
    `items` held-out items a task with `attempts` each; the acting policy `checks` times on the way,
    on `check_items` items with `check_attempts`. `config`: the sections that
    matter, as they took effect. `gradients`: updates between two whose gradient is measured task
    by task; 0: none is. `updates`: of one training, where tokens do not end it; `costs`: seconds of
    the staleness experiment's clock.
    """

    tokens: int
    refresh: int
    items: int
    attempts: int
    checks: int
    check_items: int
    check_attempts: int
    config: dict[str, Any]
    gradients: int = 0
    updates: int = 0
    costs: dict[str, float] = {}


class Point(Finding, frozen=True):
    """After one round of groups and its update, if it made one (`version` moved then).

    `tokens`: sampled so far. By task: `success` of the round's episodes, `spread`: the share of its
    groups that had one; `states`, `histories`: distinct ones so far. `tracks`: the share of the
    round's sampled tokens by track. `metrics`: of the update, as the trainer records them.
    `gradients`: norm of each task's part of the gradient, where it was measured.
    """

    version: int
    tokens: int
    success: dict[str, float]
    spread: dict[str, float]
    states: dict[str, int]
    histories: dict[str, int]
    tracks: dict[str, float]
    metrics: dict[str, float]
    gradients: dict[str, float] = {}


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


class Training(SavedFinding, frozen=True):
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

    @property
    def file(self) -> str:
        return f"training-{self.arm}-{self.seed}.json"


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


class Drift(SavedFinding, frozen=True):
    """One long training of the arm `current`, its trajectories scored by later checkpoints."""

    design: Design
    seed: int
    seconds: float
    updates: int
    lags: list[Lag]
    mixtures: list[Mixture]

    @property
    def file(self) -> str:
        return f"drift-{self.seed}.json"


K = TypeVar("K", bound=SavedFinding)


def keep(directory: Path, found: SavedFinding) -> None:
    """Write its file whole or not at all."""
    path = directory / found.file
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(msgspec.json.encode(found) + b"\n")
    partial.rename(path)


def read(directory: Path, prefix: str, kind: type[K]) -> list[K]:
    """All files of a kind, by name.

    Raises ConfigError for one that is none, or holds another arm or seed than its name says.
    """
    found = []
    for path in sorted(directory.glob(f"{prefix}-*.json")):
        try:
            one = msgspec.json.decode(path.read_bytes(), type=kind)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{path} cannot be decoded: {error}", hint="delete the file"
            ) from error
        if path.name != one.file:
            raise ConfigError(f"{path} contains the results of {one.file}", hint="delete the file")
        found.append(one)
    return found


def read_study(directory: Path, kind: type[K]) -> list[K]:
    """All trainings of a folder.

    Raises ConfigError where there are none, and where two were made with different designs.
    """
    found = read(directory, "training", kind)
    if not found:
        raise ConfigError(
            f"{directory} contains no training-*.json", hint="run the experiment first"
        )
    if name := differing(found, found[0].design):
        raise ConfigError(
            f"{directory}/{name} was made by another version of the study", hint="delete the file"
        )
    return found


def require_same_design(
    directory: Path, design: Finding, kind: type[SavedFinding], prefix: str = "training"
) -> None:
    """Raise ConfigError where a file of that prefix was made with another design."""
    if name := differing(read(directory, prefix, kind), design):
        raise ConfigError(
            f"{directory}/{name} was made with other options or another configuration",
            hint="choose another --out, or delete the file",
        )


def differing(found: Sequence[SavedFinding], design: Finding) -> str:
    """What was made with another design, as ARM-SEED; empty where all agree."""
    names = [each.file for each in found if each.design != design]
    return names[0].removeprefix("training-").removesuffix(".json") if names else ""


def as_json(found: object) -> bytes:
    """Figures, for people to read."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
