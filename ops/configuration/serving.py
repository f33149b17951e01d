"""The part of a configuration that policy servers and engines get."""

from agentrl.core.config.config import Config
from agentrl.serving.engines import ServingConfig


def serving_config(config: Config) -> ServingConfig:
    """Return the part of the configuration for a policy server and its engine."""
    return ServingConfig(
        model=config.model,
        lora=config.trainer.lora,
        home=config.home(),
        cache=config.cache(),
        seed=config.run.seed,
        completion_timeout_s=config.worker.completion_timeout_s,
        metrics=bool(config.metrics.port),
    )
