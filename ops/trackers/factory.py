"""Which tracker a name of `trackers.use` means."""

from agentrl.core.config import Config
from agentrl.core.errors import ConfigError
from agentrl.ops.trackers.base import Ground, Tracker, folder_of


def make(name: str, config: Config) -> Tracker:
    """A tracker of `trackers.use`. Raises ConfigError where the extra is not installed."""
    section = config.trackers
    folder = folder_of(name, config)
    ground = Ground(folder, section.project, section.mlflow_url, section.wandb_online)
    try:
        if name == "tensorboard":
            from agentrl.ops.trackers.tensorboard import TensorBoard

            return TensorBoard(ground)
        if name == "wandb":
            from agentrl.ops.trackers.wandb import WeightsAndBiases

            return WeightsAndBiases(ground)
        from agentrl.ops.trackers.mlflow import MLflow

        return MLflow(ground)
    except ImportError as error:
        raise ConfigError(
            f"trackers.use: {name} is not installed: {error}",
            hint="pip install 'agentrl-system[trackers]'",
        ) from error
