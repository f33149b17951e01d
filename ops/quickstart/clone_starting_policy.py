"""The starting policy of a quickstart: experts cloned into the recipe's model, once."""

import gc
import sys
from pathlib import Path

from msgspec.structs import replace

from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.core.processes.malloc_tuning import release_unused
from agentrl.ops.configuration.configs import check_items
from agentrl.ops.doctor.memory import require_memory
from agentrl.ops.quickstart.recipes import Recipe, Size
from agentrl.ops.warmstart.command import make
from agentrl.ops.warmstart.expert_processes import usable_processes
from agentrl.ops.warmstart.options import WarmstartOptions
from agentrl.ops.warmstart.start_adapter import StartAdapter
from agentrl.ops.warmstart.warmstart import require_same_start


def require_run_memory(recipe: Recipe, config: Config) -> None:
    """Raise ConfigError if the run will not fit into memory, also before its start is made."""
    start = Path(config.model.path)
    model = recipe.model_path()
    path = str(start if start.exists() else model)
    require_memory(replace(config, model=replace(config.model, path=path)))


def make_start(recipe: Recipe, size: Size, config: Config) -> None:
    """Create `config.model.path` if missing, or continue an interrupted warm start.

    Raises ConfigError if the recipe's model is missing, or if the existing one was cloned with
    other options, ItemError for a split without items if experts are to be cloned, Interrupted, and
    the errors of `warmstart`.
    """
    if not size.clones:
        return
    out, model = Path(config.model.path), recipe.model_path()
    if not model.exists():
        raise ConfigError(f"{model} does not exist", hint=recipe.hint)
    options = _warmstart_options(recipe, size, config)
    if out.exists():
        require_same_start(options)
        return
    if not StartAdapter(out, model).folder.exists():  # from which OUT is made without items
        check_items(config)
    print(
        f"warm start: {size.clones} steps on {size.episodes} episodes of each task's expert",
        file=sys.stderr,
        flush=True,
    )
    make(options)
    # The run that follows needs the memory of the optimizer.
    gc.collect()
    release_unused()


def _warmstart_options(recipe: Recipe, size: Size, config: Config) -> WarmstartOptions:
    return WarmstartOptions(
        out=Path(config.model.path),
        tasks=config.tasks,
        phases=(recipe.phase(size),),
        model=recipe.model_path(),
        style=config.model.call_style,
        chat_template=config.model.chat_template,
        episodes=size.episodes,
        batch_tokens=recipe.clone_tokens,
        measured=0,  # the run measures it as its version 0
        sampling=config.sampling,
        seed=config.run.seed,
        threads=recipe.threads,
        dtype=config.model.dtype,
        device=config.model.device,
        chunk_logits=config.trainer.chunk_logits,
        processes=usable_processes(),
        lora=replace(config.trainer.lora, rank=recipe.clone_rank),
        command=f"agentrl quickstart {recipe.name}",
    )
