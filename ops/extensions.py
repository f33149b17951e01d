"""`agentrl deepspeed build`: the compiled parts of the engine deepspeed, ahead of training."""

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
            "deepspeed is not installed", mend="pip install 'agentrl-system[deepspeed]'"
        )
    from agentrl.trainer import extensions

    if extensions.built(section.extensions):
        return f"already built: {extensions.folder(section.extensions)}"
    return f"built: {extensions.build(section.extensions)}"
