"""The trackers that `trackers.use` may name; each is imported when a run uses it."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError, require_known
from agentrl.ops.trackers.base import Tracker, TrackerPlace, folder_of

MISSING = "pip install 'agentrl-system[trackers]'"


@dataclass(frozen=True, slots=True)
class TrackerEntry:
    """The MODULE:CLASS of a tracker, and its requirements.

    `library`: the module it imports. `distribution`: the package that installs it.
    """

    make: str
    library: str
    distribution: str


TRACKERS = {
    "tensorboard": TrackerEntry(
        "agentrl.ops.trackers.tensorboard:TensorBoard", "tensorboard", "tensorboard"
    ),
    "mlflow": TrackerEntry("agentrl.ops.trackers.mlflow:MLflow", "mlflow", "mlflow-skinny"),
    "wandb": TrackerEntry("agentrl.ops.trackers.wandb:WeightsAndBiases", "wandb", "wandb"),
}


def check(name: str) -> None:
    """Raise ConfigError if a tracker is unknown or its library is not installed."""
    require_known("trackers.use", name, TRACKERS)
    if find_spec(TRACKERS[name].library) is None:
        raise ConfigError(f"trackers.use: {name} is not installed", hint=MISSING)


def make(name: str, config: Config) -> Tracker:
    """Create a tracker of `trackers.use`. Raises ConfigError if the extra is not installed."""
    require_known("trackers.use", name, TRACKERS)
    section = config.trackers
    folder = folder_of(name, config)
    ground = TrackerPlace(folder, section.project, section.mlflow_url, section.wandb_online)
    module, _, kind = TRACKERS[name].make.partition(":")
    try:
        made: Callable[[TrackerPlace], Tracker] = getattr(import_module(module), kind)
        return made(ground)
    except ImportError as error:
        raise ConfigError(
            f"trackers.use: {name} is not installed: {error}", hint=MISSING
        ) from error
