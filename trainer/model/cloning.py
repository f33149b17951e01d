"""Behaviour cloning: a causal language model learns to imitate demonstrators.

    demonstrations ─▶ batches, packed end to end ─▶ cross-entropy on their own tokens ─▶ step

Muon updates the matrices of a small model, AdamW the rest. A policy of a million parameters learned
to copy names from its prompt with both, but not with AdamW alone. An adapter and a model above
`MUON_PARAMETERS` use AdamW only: the products of Muon would take longer than the model's step
(SmolLM2-135M: 145 against 60 tokens a second, and no lower loss at equal tokens).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.core.config.sections.base import Dtype
from agentrl.core.errors import CheckpointError
from agentrl.trainer.algorithm.presets import CLONING_LOGITS
from agentrl.trainer.model.attention import hidden_states, pack
from agentrl.trainer.model.files.loading import load_model
from agentrl.trainer.model.token_scores import score_tokens
from agentrl.trainer.model.trainable_model import trainable_parameters
from agentrl.trainer.snapshots.snapshots import State

POOL = 16  # batches whose demonstrations are sorted by length together
WARMUP = 20  # steps
MATRICES = 6.0  # Muon's learning rate over AdamW's
MUON_PARAMETERS = 20_000_000


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A demonstration. `token_ids` int32 [T]; `mask` uint8 [T], 1 for the demonstrator's tokens."""

    token_ids: NDArray[np.int32]
    mask: NDArray[np.uint8]


class Cloner:
    """Trains a model over one phase of `steps` steps.

    `rate`: AdamW's learning rate; Muon's is `MATRICES` times it. They rise over the first steps,
    then fall linearly, to a tenth at the last one. `dtype`: of the products; weights and optimizer
    states stay as they are. `chunk_logits`: logits in memory at once; None: `CLONING_LOGITS`.
    """

    def __init__(
        self,
        model: Any,
        rate: float,
        steps: int,
        dtype: Dtype = "float32",
        chunk_logits: int | None = None,
    ) -> None:
        words: int = model.config.get_text_config().vocab_size
        self._chunk = max(1, (chunk_logits or CLONING_LOGITS) // words)  # rows
        self.model = model
        self._device: torch.device = model.device
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._is_packed = _try_pack(model)
        self._steps, self._done = steps, 0
        rest = [weight for weight in model.parameters() if weight.requires_grad]
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = []
        if learns_by_muon(model):
            embeddings = {id(weight) for weight in _embeddings(model)}
            matrices = [w for w in rest if w.ndim == 2 and id(w) not in embeddings]
            held = {id(weight) for weight in matrices}
            rest = [weight for weight in rest if id(weight) not in held]
            muon = torch.optim.Muon(matrices, weight_decay=0.0)
            self._optimizers.append((muon, MATRICES * rate))
        adamw = torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self._optimizers.append((adamw, rate))

    def step(self, demonstrations: Sequence[Demonstration]) -> float:
        """Run one optimizer step on a batch; return the mean loss in nats per token."""
        rows = [demonstrations] if self._is_packed else [[each] for each in demonstrations]
        count = sum(int(each.mask[1:].sum()) for each in demonstrations)
        mean = 0.0
        for row in rows:
            loss = self._loss(row) / count
            loss.backward()  # type: ignore[no-untyped-call]
            mean += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        scale = self._scale()
        for optimizer, rate in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._done += 1
        return mean

    def state(self) -> State:
        """Return trained weights, optimizer states and the step count, to continue exactly."""
        trained = trainable_parameters(self.model)
        tensors = {f"model/{name}": weight for name, weight in trained.items()}
        for number, (optimizer, _) in enumerate(self._optimizers):
            for index, entries in optimizer.state_dict()["state"].items():
                found = {f"optimizer/{number}/{index}/{k}": value for k, value in entries.items()}
                tensors |= found
        return State({name: each.detach() for name, each in tensors.items()}, {"done": self._done})

    def load_state(self, state: State) -> None:
        """Restore a state. Raises CheckpointError if it belongs to another model."""
        entries: list[dict[int, dict[str, Tensor]]] = [{} for _ in self._optimizers]
        own = trainable_parameters(self.model)
        for name, tensor in state.tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "optimizer":
                number, index, key = rest.split("/")
                if int(number) >= len(entries):
                    raise CheckpointError(
                        "the saved state belongs to other optimizers",
                        hint="delete it and start again",
                    )
                entries[int(number)].setdefault(int(index), {})[key] = tensor
            elif rest not in own or own[rest].shape != tensor.shape:
                raise CheckpointError(f"the model has no weight {rest}")
            else:
                own[rest].data.copy_(tensor)
        for (optimizer, _), found in zip(self._optimizers, entries, strict=True):
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": found, "param_groups": groups})
        self._done = int(state.values["done"])

    def _loss(self, row: Sequence[Demonstration]) -> Tensor:
        """Return the summed negative log-likelihood of the demonstrators' tokens in nats."""
        tokens, lengths, learned = _join(row)
        tokens, learned = tokens.to(self._device), learned.to(self._device)
        head = self.model.get_output_embeddings()
        low = self._dtype != torch.float32
        kind = self._device.type
        with torch.autocast(kind, dtype=self._dtype if low else None, enabled=low):
            hidden = hidden_states(self.model, tokens, lengths, learned - 1)
            ones = torch.ones(len(learned), device=self._device)
            return -score_tokens(head, hidden, ones, tokens[learned], self._chunk)[0].sum()

    def _scale(self) -> float:
        rise = (self._done + 1) / (WARMUP + 1)
        return min(rise, max(0.1, 1.0 - 0.9 * self._done / self._steps))


def learns_by_muon(model: Any) -> bool:
    """Return whether all weights are trained, and are few enough for Muon."""
    weights = list(model.parameters())
    count: int = sum(weight.numel() for weight in weights)
    return count <= MUON_PARAMETERS and all(weight.requires_grad for weight in weights)


def batches(
    demonstrations: Sequence[Demonstration], tokens: int, random: Random
) -> Iterator[list[Demonstration]]:
    """Yield batches of similar length for ever, at most `tokens` padded tokens or one episode."""
    if not demonstrations:
        raise ValueError("there is no demonstration to learn from")
    while True:
        order = random.sample(demonstrations, len(demonstrations))
        longest = max(len(demonstration.mask) for demonstration in order)
        pool = POOL * max(1, tokens // longest)
        for start in range(0, len(order), pool):
            alike = sorted(order[start : start + pool], key=lambda each: len(each.mask))
            cut = list(_cut(alike, tokens))
            random.shuffle(cut)
            yield from cut


def new_model(shape: dict[str, Any], seed: int) -> Any:
    """Create a Qwen3 with random fp32 weights. `shape`: values of its config."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    model: Any = Qwen3ForCausalLM(Qwen3Config(**shape))  # type: ignore[no-untyped-call]
    return model.float()


def load(path: Path, device: str = "cpu") -> Any:
    """Load a model for cloning. Raises CheckpointError."""
    return load_model(path, torch.device(device))


def _cut(alike: Sequence[Demonstration], tokens: int) -> Iterator[list[Demonstration]]:
    """Split runs of ascending length with a padded size of at most `tokens`."""
    batch: list[Demonstration] = []
    for demonstration in alike:
        if batch and (len(batch) + 1) * len(demonstration.mask) > tokens:
            yield batch
            batch = []
        batch.append(demonstration)
    yield batch


def _embeddings(model: Any) -> list[Tensor]:
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    return [module.weight for module in modules if module is not None]


def _try_pack(model: Any) -> bool:
    """Prepare packing; return whether the model supports it."""
    try:
        pack(model)
    except CheckpointError:
        return False
    return True


def _join(row: Sequence[Demonstration]) -> tuple[Tensor, tuple[int, ...], Tensor]:
    """Return packed tokens [T], lengths, and places [K] in T of the tokens to learn.

    Tokens after a demonstration's last token to learn are left out.
    """
    masks = []
    for each in row:
        mask = each.mask.astype(bool)
        mask[0] = False  # nothing predicts an episode's first token
        last = np.flatnonzero(mask)
        masks.append(mask[: last[-1] + 1] if last.size else mask[:1])
    tokens = np.concatenate([e.token_ids[: len(m)] for e, m in zip(row, masks, strict=True)])
    places = np.flatnonzero(np.concatenate(masks))
    lengths = tuple(map(len, masks))
    return torch.from_numpy(tokens.astype(np.int64)), lengths, torch.from_numpy(places)
