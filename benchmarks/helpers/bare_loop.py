"""The loop that the trainer's updates are compared with: what any trainer must at least compute."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.trainer.algorithm.presets import Settings
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.model.attention import hidden_states
from agentrl.trainer.model.packing import MicroBatch, micro_batches
from agentrl.trainer.model.trainable_model import make_trainable, trainable_parameters


def bare_update(
    path: Path, batch: Batch, settings: Settings, hardware: Hardware, *, every_token: bool
) -> Callable[[], None]:
    """Return forward, backward and AdamW of the weights that `settings` train, all or an adapter.

    The passes are the trainer's, with cross-entropy at every token or at the loss tokens only.
    """
    model = make_trainable(path, settings, hardware).model
    weights = trainable_parameters(model).values()
    optimizer = torch.optim.AdamW(weights, lr=settings.learning_rate, fused=True)
    dtype: torch.dtype = getattr(torch, hardware.dtype)
    kind = torch.device(hardware.device).type
    score = _every_token_loss if every_token else _loss_tokens_loss

    def step() -> None:
        for micro in micro_batches(batch, settings.micro_batch_tokens):
            with torch.autocast(kind, dtype=dtype, enabled=dtype != torch.float32):
                loss = score(model, micro)
            torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _every_token_loss(model: Any, micro: MicroBatch) -> Tensor:
    tokens = torch.from_numpy(micro.tokens).to(model.device)
    hidden = hidden_states(model, tokens, micro.lengths, parents=micro.parents)
    logits = model.get_output_embeddings()(hidden)
    return torch.nn.functional.cross_entropy(logits[:-1].float(), tokens[1:])


def _loss_tokens_loss(model: Any, micro: MicroBatch) -> Tensor:
    tokens = torch.from_numpy(micro.tokens).to(model.device)
    places = torch.from_numpy(micro.predicts).to(model.device)
    targets = torch.from_numpy(micro.targets).to(model.device)
    hidden = hidden_states(model, tokens, micro.lengths, parents=micro.parents)
    logits = model.get_output_embeddings()(hidden[places])
    return torch.nn.functional.cross_entropy(logits.float(), targets)
