"""`agentrl deepspeed build`: compiles DeepSpeed's extensions before training."""

from importlib.util import find_spec
from pathlib import Path

from agentrl.core import config_loading
from agentrl.core.config.sections.training import DeepSpeed
from agentrl.core.errors import ConfigError
from agentrl.ops.interruption import handle_interruption


def build(path: Path | None) -> str:
    """Compile what is missing. Return a line about the result.

    Raises ConfigError, and KeyboardInterrupt at SIGINT and SIGTERM, after its compilers ended.
    """
    section = config_loading.load(path).trainer.deepspeed if path else DeepSpeed()
    if find_spec("deepspeed") is None:
        raise ConfigError(
            "deepspeed is not installed", hint="run `pip install 'agentrl-system[deepspeed]'`"
        )
    from agentrl.trainer.engines import deepspeed_build

    if deepspeed_build.is_built(section.extensions):
        return f"already compiled: {deepspeed_build.build_folder(section.extensions)}"
    print("compiling cpu_adam for DeepSpeed, a few minutes …", flush=True)
    with handle_interruption():
        return f"compiled: {deepspeed_build.build_optimizer(section.extensions)}"
