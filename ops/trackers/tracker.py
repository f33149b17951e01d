"""What a run tells a tracker, whatever its name."""

import ctypes
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from core.config import Config
from core.errors import AgentRLError, ConfigError


class TrackerError(AgentRLError):
    """A tracker failed or cannot be reached: told again later."""


PASSWORD = re.compile(r"(://[^:/@]*:)[^/@]+@")
Figure = tuple[int, str, float]  # version, name, value as 32 bits hold it


class Tracker(Protocol):
    """Used by one thread. What a call raises costs a later try and nothing else."""

    def start(self, run: str, config: Mapping[str, Any]) -> Collection[Figure]:
        """Begin, or go on with the run of that id; what it holds already.

        `config`: all its values.
        """

    def log(self, version: int, metrics: Mapping[str, float]) -> None:
        """Take the figures of a version. What a kill loses is missing at the next start."""

    def finish(self) -> None:
        """Write what was taken and close; `start` may follow."""


def figure(version: int, name: str, value: float) -> Figure:
    """What tells whether a tracker holds a value, whatever precision it keeps."""
    return version, name, ctypes.c_float(value).value  # beyond 32 bits: infinite


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a tracker keeps things. `folder`: of its own."""

    folder: Path
    project: str
    url: str
    online: bool


def make(name: str, config: Config) -> Tracker:
    """A tracker of `trackers.use`. Raises ConfigError where the extra is not installed."""
    section = config.trackers
    folder = (Path(section.folder) if section.folder else config.home() / "trackers") / name
    ground = Ground(folder, section.project, section.mlflow_url, section.wandb_online)
    try:
        if name == "tensorboard":
            from ops.trackers.tensorboard import TensorBoard

            return TensorBoard(ground)
        if name == "wandb":
            from ops.trackers.wandb import WeightsAndBiases

            return WeightsAndBiases(ground)
        from ops.trackers.mlflow import MLflow

        return MLflow(ground)
    except ImportError as error:
        raise ConfigError(
            f"trackers.use: {name} is not installed: {error}",
            mend="pip install 'agentrl-system[trackers]'",
        ) from error


def without_passwords(value: Any) -> Any:
    """Values of a configuration, each password in a URL as `***`: they leave this machine."""
    if isinstance(value, Mapping):
        return {key: without_passwords(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_passwords(each) for each in value]
    return PASSWORD.sub(r"\1***@", value) if isinstance(value, str) else value


def flat(config: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested values by their whole key."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{where}{key}.")
        else:
            found[f"{where}{key}"] = value
    return found
