"""`agentrl deepspeed build`: compiles DeepSpeed's extensions before training."""

from importlib.util import find_spec
from pathlib import Path

from agentrl.core import loading
from agentrl.core.config import DeepSpeed
from agentrl.core.errors import ConfigError


def build(path: Path | None) -> str:
    """Compile what is missing; what to tell of it. Raises ConfigError."""
    section = loading.load(path).trainer.deepspeed if path else DeepSpeed()
    if find_spec("deepspeed") is None:
        raise ConfigError(
            "deepspeed is not installed", hint="run `pip install 'agentrl-system[deepspeed]'`"
        )
    from agentrl.trainer.engines import deepspeed_build

    if deepspeed_build.built(section.extensions):
        return f"already compiled: {deepspeed_build.folder(section.extensions)}"
    return f"compiled: {deepspeed_build.build(section.extensions)}"
