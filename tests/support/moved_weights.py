"""Weights that differ from those a learner began with, without the cost of an update."""

import torch

from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.trainable_model import trainable_parameters


def move_weights(learner: TorchLearner, rank: int, deviation: float = 0.003) -> None:
    """Add normal noise to all trained weights; of an adapter (`rank` > 0) only to B, which is 0."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in trainable_parameters(learner._model).items():
            if not rank or "lora_B" in name:
                parameter.add_(deviation * torch.randn_like(parameter))
