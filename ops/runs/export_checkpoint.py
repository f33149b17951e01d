"""`agentrl export`: exports a checkpoint as a transformers directory."""

from pathlib import Path

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.ops.evaluation.target import resolve
from agentrl.serving.local.adapter_sum import merge_adapter
from agentrl.trainer.model.files.export import export as write


def export(name: str, out: Path, config: Path | None, *, merge_lora: bool) -> str:
    """Export; return the message to print. Raises ConfigError, StoreError, CheckpointError."""
    if config is None and name.endswith(".toml"):
        raise ConfigError(
            f"{name} is a configuration, not a checkpoint",
            hint="add --dataset or --sft to export its episodes, or name RUN@latest with --config",
        )
    if config is None and not Path(name).is_dir():
        raise ConfigError(
            f"{name} is not a directory", hint="add --config CONFIG to find a checkpoint by name"
        )
    place = config_loading.load(config) if config else Config(tasks={})
    target = resolve(name, place)
    write(target.path, out, merge_adapter if merge_lora else None)
    return f"{target.checkpoint_id} is in {out}; AutoModelForCausalLM.from_pretrained loads it"
