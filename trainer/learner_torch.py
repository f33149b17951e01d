"""The learner of one process on torch: accumulate micro-batches, then one optimizer step."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.errors import CheckpointError, ConfigError
from core.manifest import Probe
from trainer.advantages import Floats
from trainer.batch import Batch, Ints, MicroBatch, micro_batches
from trainer.learner import Metrics
from trainer.losses import cispo, gspo, importance, kl, ppo_clip
from trainer.losses.tokens import TokenLoss, Tokens
from trainer.metrics import Recorded, measure
from trainer.presets import Clip, Settings
from trainer.snapshots import State, random_state, set_random_state
from trainer.tuning import probe, trained, tuned

LOSSES: Mapping[str, Callable[[Tokens, Clip], TokenLoss]] = {
    "ppo_clip": ppo_clip.token_loss,
    "cispo": cispo.token_loss,
    "gspo": gspo.token_loss,
}


class Chunk(NamedTuple):
    """What a chunk of K loss tokens is computed from.

    `hidden`, `anchor`: [K, H] states before them, of the policy and of the reference; `sequence`:
    [K] log-ratio of each token's sequence, for the loss that asks.
    """

    hidden: Tensor
    anchor: Tensor | None
    sequence: Tensor | None


@dataclass(frozen=True, slots=True)
class Hardware:
    """Where to compute. `dtype`: of the forward pass and of saved weights; masters are fp32.

    `chunk_logits`: logits held at once, which bounds memory whatever the vocabulary.
    """

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    chunk_logits: int = 2**22


class TorchLearner:
    """A Learner. What is trained is held in fp32; dropout is off: ratios start at one."""

    def __init__(self, model_path: Path, settings: Settings, hardware: Hardware) -> None:
        """`model_path`: the run's first checkpoint, on resume too: the KL term's reference is it.

        Raises CheckpointError for a model that cannot be used here, ConfigError for a device that
        is not or an adapter that does not fit.
        """
        if hardware.device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"model.device: no {hardware.device} here", mend='set it to "cpu"')
        torch.set_num_threads(hardware.threads)
        self._settings = settings
        self._chunk_logits = hardware.chunk_logits
        self._device = torch.device(hardware.device)
        self._dtype: torch.dtype = getattr(torch, hardware.dtype)
        self._anchored = settings.kl_weight > 0
        self._tuned = tuned(
            model_path, self._device, self._dtype, settings.lora, reference=self._anchored
        )
        self._model = self._tuned.model
        self._optimizer = _adamw(self._model, settings)
        self._updates = 0

    def update(self, batch: Batch) -> Metrics:
        """One optimizer step, or none: no loss token, a loss or the norm not finite."""
        began = time.perf_counter()
        recorded = Recorded.empty(batch.tokens.size)
        sequence = self._sequence_log_ratios(batch)
        for micro in micro_batches(batch, self._settings.micro_batch_tokens):
            self._accumulate(batch, micro, sequence, recorded)
        norm = self._clip_gradients()
        skipped = _reason(batch, float(recorded.loss.sum()), norm)
        rate = learning_rate(self._settings, self._updates)
        if not skipped:
            self._step(rate)
        self._optimizer.zero_grad(set_to_none=True)
        values = measure(batch, recorded)
        values |= {"learning_rate": rate, "seconds": time.perf_counter() - began}
        if math.isfinite(norm):
            values["grad_norm"] = norm
        return Metrics(values, skipped)

    def save(self, directory: Path) -> None:
        """See Learner.save; weights are written in the hardware's dtype."""
        self._tuned.save(directory)

    def probe(self) -> Probe:
        """See Learner.probe."""
        return probe(self._model, self._dtype)

    def state(self) -> State:
        """See Learner.state; a copy, which later updates leave alone."""
        generators = random_state()
        parameters = trained(self._model)
        tensors = {f"weights/{name}": p.detach().cpu().clone() for name, p in parameters.items()}
        for name, parameter in parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value.detach().cpu().clone()
        values = {"updates": self._updates, **generators.values}
        return State(tensors | dict(generators.tensors), values)

    def load_state(self, state: State) -> None:
        """See Learner.load_state."""
        parameters = trained(self._model)
        expected = {f"weights/{name}" for name in parameters}
        found = {name for name in state.tensors if name.startswith("weights/")}
        if found != expected:
            raise CheckpointError(f"the snapshot does not fit the model: {min(found ^ expected)}")
        with torch.no_grad():
            for name, parameter in parameters.items():
                _fill(parameter, state.tensors[f"weights/{name}"], name)
        self._optimizer.state.clear()
        for path, tensor in state.tensors.items():
            kind, _, rest = path.partition("/")
            key, _, name = rest.partition("/")
            if kind == "optimizer":
                self._optimizer.state[parameters[name]][key] = tensor.to(self._device, copy=True)
        self._updates = int(state.values["updates"])
        set_random_state(state)

    def _accumulate(
        self, batch: Batch, micro: MicroBatch, sequence: Floats | None, recorded: Recorded
    ) -> None:
        """Add the gradient of one micro-batch's share of the loss.

        The head runs in chunks that backpropagate at once, so that few logits exist at a time.
        """
        hidden = self._hidden(self._model, micro)
        leaf = hidden.detach().requires_grad_()
        reference = None
        if self._anchored:
            with torch.no_grad(), self._tuned.reference() as first:
                reference = self._hidden(first, micro)
        for part in self._chunks(len(leaf)):
            anchor = None if reference is None else reference[part]
            sources = micro.sources[part]
            old = None if sequence is None else torch.from_numpy(sequence[sources])
            loss = self._chunk_loss(Chunk(leaf[part], anchor, old), batch, sources, recorded)
            shares = torch.from_numpy(batch.shares[sources]).to(self._device)
            torch.autograd.backward((loss * shares).sum())
        torch.autograd.backward(hidden, leaf.grad)

    def _chunk_loss(
        self, chunk: "Chunk", batch: Batch, sources: Ints, recorded: Recorded
    ) -> Tensor:
        """[K] loss of the tokens at `sources`."""
        hidden, anchor, sequence = chunk
        behaviour, advantages, temperature, targets = (
            torch.from_numpy(values[sources]).to(self._device)
            for values in (batch.behaviour, batch.advantages, batch.temperature, batch.tokens)
        )
        every = self._log_probabilities(self._model, hidden, temperature)
        current = _of_targets(every, targets)
        old = behaviour if self._settings.old == "behaviour" else current.detach()
        weights = importance.weights(old, behaviour, self._settings.importance)
        if sequence is not None:
            old = current.detach() - sequence.to(self._device)
        tokens = Tokens(current, old, advantages, weights)
        loss, clipped = LOSSES[self._settings.loss](tokens, self._settings.clip)
        if anchor is not None:
            with torch.no_grad(), self._tuned.reference() as first:
                expected = self._log_probabilities(first, anchor, temperature)
            penalty = kl.k3(current, _of_targets(expected, targets))
            recorded.kl[sources] = penalty.detach().cpu().numpy()
            loss = loss + self._settings.kl_weight * penalty
        with torch.no_grad():
            recorded.entropy[sources] = -(every.exp() * every).sum(-1).cpu().numpy()
        recorded.logprobs[sources] = current.detach().cpu().numpy()
        recorded.loss[sources] = loss.detach().cpu().numpy()
        recorded.clipped[sources] = clipped.cpu().numpy()
        return loss

    def _sequence_log_ratios(self, batch: Batch) -> Floats | None:
        """[N] log π/μ of the sequence of each token, for the loss that asks; a pass of its own.

        None where it is zero: the proximal policy is the current one.
        """
        if (self._settings.loss, self._settings.old) != ("gspo", "behaviour"):
            return None
        log_ratios = np.zeros(batch.tokens.size, np.float32)
        for micro in micro_batches(batch, self._settings.micro_batch_tokens):
            with torch.no_grad():
                hidden = self._hidden(self._model, micro)
                for part in self._chunks(len(hidden)):
                    sources = micro.sources[part]
                    temperature, targets = (
                        torch.from_numpy(values[sources]).to(self._device)
                        for values in (batch.temperature, batch.tokens)
                    )
                    every = self._log_probabilities(self._model, hidden[part], temperature)
                    current = _of_targets(every, targets).cpu().numpy()
                    log_ratios[sources] = current - batch.behaviour[sources]
        return gspo.sequence_log_ratios(log_ratios, batch.loss_mask, batch.lengths)

    def _chunks(self, tokens: int) -> Iterator[slice]:
        """Parts of `tokens` whose logits may exist at once."""
        size = max(1, self._chunk_logits // self._model.config.get_text_config().vocab_size)
        return (slice(start, start + size) for start in range(0, tokens, size))

    def _hidden(self, model: Any, micro: MicroBatch) -> Tensor:
        """[K, H] hidden states at the positions that predict loss tokens.

        No attention mask: under causal attention no kept position sees the padding on its right.
        """
        tokens = torch.from_numpy(micro.tokens).to(self._device)
        with self._precision():
            output: Tensor = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        return output.flatten(0, 1)[torch.from_numpy(micro.predicts).to(self._device)]

    def _log_probabilities(self, model: Any, hidden: Tensor, temperature: Tensor) -> Tensor:
        """[K, V] fp32 log-probabilities at each token's own temperature [K]."""
        with self._precision():
            logits = model.get_output_embeddings()(hidden)
        return torch.log_softmax(logits.float() / temperature[:, None], dim=-1)

    def _precision(self) -> torch.autocast:
        low = self._dtype != torch.float32
        return torch.autocast(self._device.type, dtype=self._dtype if low else None, enabled=low)

    def _clip_gradients(self) -> float:
        bound = self._settings.max_grad_norm
        return float(torch.nn.utils.clip_grad_norm_(trained(self._model).values(), bound))

    def _step(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._updates += 1


def learning_rate(settings: Settings, updates: int) -> float:
    """Linear warm-up over `warmup_updates`, then constant."""
    rate = settings.learning_rate
    if updates < settings.warmup_updates:
        return rate * (updates + 1) / (settings.warmup_updates + 1)
    return rate


def _adamw(model: Any, settings: Settings) -> torch.optim.AdamW:
    """AdamW whose decay spares vectors: norms and biases."""
    parameters = list(trained(model).values())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def _of_targets(every: Tensor, targets: Tensor) -> Tensor:
    """[K] the log-probabilities [K, V] of the targets [K]."""
    return every.gather(-1, targets[:, None]).squeeze(-1)


def _reason(batch: Batch, loss: float, norm: float) -> str:
    if not batch.shares.any():
        return "no loss token"
    if not math.isfinite(loss):
        return "loss is not finite"
    return "" if math.isfinite(norm) else "gradient norm is not finite"


def _fill(parameter: Tensor, value: Tensor, name: str) -> None:
    if parameter.shape != value.shape:
        raise CheckpointError(f"the snapshot does not fit the model: shape of {name}")
    parameter.copy_(value)
