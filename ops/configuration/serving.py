"""What policy servers and engines take of a configuration: of a run, an evaluation or a check."""

from agentrl.core.config import Config
from agentrl.serving.engines import ServingConfig


def serving_config(config: Config) -> ServingConfig:
    """What a policy server and its engine take of it."""
    return ServingConfig(
        model=config.model,
        lora=config.trainer.lora,
        home=config.home(),
        cache=config.cache(),
        seed=config.run.seed,
        completion_timeout_s=config.worker.completion_timeout_s,
        metrics=bool(config.metrics.port),
    )
