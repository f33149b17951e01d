"""The registry of losses (`trainer.loss`): each file of this folder that declares `LOSS`.

Names and bounds of losses are needed without torch (`agentrl config keys`), so the files of this
folder import torch inside their functions.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from agentrl.trainer.algorithm import losses
from agentrl.trainer.algorithm.losses.loss_interface import Loss


@cache
def known_losses() -> Mapping[str, Loss]:
    """Return all losses by name, which is the name of the file."""
    modules = {
        each.name: import_module(f"{losses.__name__}.{each.name}")
        for each in iter_modules(losses.__path__)
    }
    return {name: module.LOSS for name, module in modules.items() if hasattr(module, "LOSS")}
