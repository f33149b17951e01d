"""The loss of a micro-batch as one scalar to differentiate, for every engine.

MicroBatch ─▶ states of the policy ─▶ scores of its loss tokens ─▶ loss of each ─▶ Σ share · loss
          └─▶ states of the reference ─▶ their scores ─▶ KL ─┘

A teacher's scores come with the MicroBatch (trainer/distillation.py) and change the advantages.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.algorithm.losses import gspo, importance, kl
from agentrl.trainer.algorithm.losses.loss_interface import Tokens
from agentrl.trainer.algorithm.losses.registry import known_losses
from agentrl.trainer.algorithm.presets import Settings
from agentrl.trainer.algorithm.teacher_advantages import teacher_advantages
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.model.attention import hidden_states
from agentrl.trainer.model.packing import MicroBatch
from agentrl.trainer.model.token_scores import Scores, score_tokens


class Fields(NamedTuple):
    """Fields of the K loss tokens of a micro-batch, each [K]. `owners`: index of the piece.

    `proximal` is empty if the Batch's is.
    """

    targets: Tensor
    behaviour: Tensor
    temperature: Tensor
    advantages: Tensor
    shares: Tensor
    owners: Tensor
    teacher_logprobs: Tensor
    teacher_weights: Tensor
    proximal: Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    """The objective of `settings`.

    `reference`: context manager for forward passes of the run's first model; used only if
    `kl_weight` > 0. `score`: replaces `score_tokens` for an engine.
    """

    settings: Settings
    hardware: Hardware
    reference: Callable[[], AbstractContextManager[Any]]
    score: Callable[..., Scores] = score_tokens

    def loss(self, model: Any, micro: MicroBatch) -> tuple[Tensor, dict[str, Floats]]:
        """Return the micro-batch's part of the update's loss; all parts sum to the loss.

        Also return the values [K] of its loss tokens, by fields of TokenRecord. `model`: a causal
        language model of transformers. An empty micro-batch gives 0 with zero gradients for all
        weights.
        """
        fields = self._fields(micro)
        current, entropy = self._scores(model, micro, fields)
        behaviour = fields.behaviour
        old = fields.proximal if fields.proximal.numel() else current.detach()
        if self.settings.old == "behaviour":
            old = behaviour
        weights = importance.weights(old, behaviour, self.settings.importance)
        chosen = known_losses()[self.settings.loss]
        if chosen.of_sequence:
            log_ratios = current.detach() - old
            sequence = gspo.sequence_log_ratios(log_ratios, fields.owners, len(micro.lengths))
            old = current.detach() - sequence
        advantages = fields.advantages + teacher_advantages(
            current, fields.teacher_logprobs, fields.teacher_weights
        )
        tokens = Tokens(current, old, advantages, weights)
        loss, clipped = chosen.token_loss(tokens, self.settings.clip)
        found = {"logprobs": current, "entropy": entropy, "clipped": clipped}
        if self.settings.kl_weight > 0:
            penalty = kl.k3(current, self._anchor(micro, fields))
            found["kl"] = penalty
            loss = loss + self.settings.kl_weight * penalty
        return (loss * fields.shares).sum(), _on_host({**found, "loss": loss})

    def logprobs(self, model: Any, micro: MicroBatch) -> Floats:
        """Return [K] log-probabilities of the micro-batch's loss tokens, without gradient."""
        with torch.no_grad():
            found, _ = self._scores(model, micro, self._fields(micro))
        return _on_host({"logprobs": found})["logprobs"]

    def _anchor(self, micro: MicroBatch, fields: Fields) -> Tensor:
        """Return [K] log-probabilities of the reference."""
        with torch.no_grad(), self.reference() as first:
            return self._scores(first, micro, fields)[0]

    def _scores(self, model: Any, micro: MicroBatch, fields: Fields) -> Scores:
        """Return [K] log-probabilities and entropies; only loss tokens pass through the head."""
        head = model.get_output_embeddings()
        rows = max(1, self.hardware.chunk_logits // model.config.get_text_config().vocab_size)
        predicts = torch.from_numpy(micro.predicts).to(fields.targets.device)
        with self.precision():
            tokens = torch.from_numpy(micro.tokens)
            hidden = hidden_states(model, tokens, micro.lengths, predicts, micro.parents)
        with self.precision(reuse_casts=True):  # every chunk passes the same head
            return self.score(head, hidden, fields.temperature, fields.targets, rows)

    def _fields(self, micro: MicroBatch) -> Fields:
        arrays = (getattr(micro, name) for name in Fields._fields)
        return Fields(*(torch.from_numpy(each).to(self.hardware.device) for each in arrays))

    def precision(self, *, reuse_casts: bool = False) -> torch.autocast:
        """Entered around forward passes: products in the hardware's dtype.

        reuse_casts: keep the cast of each weight until the end. Without it a layer that is computed
        again, or gathered by ZeRO 3, leaves no copy of its weights behind.
        """
        dtype: torch.dtype = getattr(torch, self.hardware.dtype)
        kind, low = torch.device(self.hardware.device).type, dtype != torch.float32
        dtype_of = dtype if low else None
        return torch.autocast(kind, dtype=dtype_of, enabled=low, cache_enabled=reuse_casts)


def _on_host(found: Mapping[str, Tensor]) -> dict[str, Floats]:
    """Copy [K] arrays by name to the host in one transfer."""
    rows = torch.stack([each.detach().float() for each in found.values()]).cpu().numpy()
    return dict(zip(found, rows, strict=True))
