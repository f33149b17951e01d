"""Gradient checkpointing: the backward pass computes activations again from each layer's input.

A pass then needs memory for the layers' inputs and one layer's activations, and one more forward
pass.
"""

from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint

from agentrl.core.errors import ConfigError


def enable_checkpointing(model: Any) -> None:
    """Enable it for every layer that transformers marks. Raises ConfigError if there is none.

    transformers' own switch works in training mode only, which would enable dropout.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"trainer.gradient_checkpointing: {type(model).__name__} does not support it",
            hint="set it to false",
        )
    for layer in layers:
        layer.forward = partial(
            checkpoint,
            layer.forward,
            use_reentrant=False,
            preserve_rng_state=False,  # nothing is drawn: dropout is off
            determinism_check="none",  # a sharded weight has another shape while it is not gathered
        )
