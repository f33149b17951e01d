"""Loads a model and verifies that it works with our KV cache; otherwise raises CheckpointError."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.core.errors import CheckpointError
from agentrl.serving.checkpoint_loader import tolerance
from agentrl.serving.engine_api import ModelLimits
from agentrl.serving.local.kv_cache import RowCache, has_fast_products
from agentrl.serving.local.networks import Base, Networks, OpenedNetwork

if TYPE_CHECKING:
    from agentrl.serving.local.recorded_passes import PassRecorder

GROUPED = "agentrl_grouped"
PROBE, SPLIT, SINGLE = 32, 8, 5  # tokens of the probe, of its first pass, and one by one
PROBE_ROWS = 4


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A causal language model in evaluation mode, and an empty cache of its shape.

    `base`: the model with which it shares storage. `recorder`: of its passes; None: none is
    recorded.
    """

    network: nn.Module
    limits: ModelLimits
    cache: RowCache
    base: Base
    recorder: "PassRecorder | None" = None

    def forward(self, first: int, ids: Tensor, positions: Tensor, width: int) -> Tensor:
        """Run rows first…: ids, positions [n, T] → logits of the last column [n, vocabulary] fp32.

        A query at position p sees the keys at positions 0…p. width: one above the largest position
        that counts. The result of a recorded pass is overwritten by the next one.
        """
        if self.recorder is not None:
            logits = self.recorder.replay(self, first, ids, positions, width)
            if logits is not None:
                return logits
        return self.logits(first, ids, positions, width, 1)[:, -1]

    @torch.inference_mode()
    def score(self, tokens: Sequence[int]) -> list[float]:
        """Return the log-probability of every token but the first, at T = 1.

        It uses a separate cache, so any thread may call it.
        """
        own = replace(self, cache=RowCache(self.cache.keys, self.cache.values))
        own.cache.reserve(1, len(tokens))
        ids = torch.tensor([tokens], device=own.cache.keys.device)
        positions = torch.arange(len(tokens), device=ids.device)[None]
        every = torch.log_softmax(own.logits(0, ids, positions, len(tokens), 0)[0], dim=-1)
        logprobs: list[float] = every[:-1].gather(-1, ids[0, 1:, None])[:, 0].tolist()
        return logprobs

    def logits(self, first: int, ids: Tensor, positions: Tensor, width: int, last: int) -> Tensor:
        """Return [n, `last`, vocabulary] fp32 logits of the last columns; 0: of all."""
        device = self.cache.keys.device
        ids, positions = ids.to(device), positions.to(device)
        self.cache.aim(first, positions, width)
        return self.aimed_logits(ids, positions, width, last)

    def aimed_logits(self, ids: Tensor, positions: Tensor, width: int, last: int) -> Tensor:
        """Like `logits`, of the rows at which the cache aims."""
        hidden = torch.arange(width, device=ids.device) > positions[:, None, :, None]
        dtype: torch.dtype = self.cache.keys.dtype
        mask = torch.zeros(hidden.shape, dtype=dtype, device=ids.device)
        logits: Tensor = self.network(
            input_ids=ids,
            position_ids=positions.clamp(max=self.limits.context - 1),
            attention_mask=mask.masked_fill_(hidden, torch.finfo(dtype).min),
            past_key_values=self.cache,
            logits_to_keep=last,
        ).logits
        return logits.float()


def load_model(path: Path, device: str, dtype: torch.dtype) -> ServedModel:
    """Load the model of a safetensors directory. Raises CheckpointError, like `verify_model`."""
    bound = tolerance(str(dtype).removeprefix("torch."))
    return verify_model(Networks(device, dtype).open(path), path, bound)


def verify_model(opened: OpenedNetwork, path: Path, most_off: float) -> ServedModel:
    """Verify a network with our cache. most_off: allowed |Δlogp|.

    Raises CheckpointError if our cache does not support the network, or if two passes through the
    cache differ from one plain pass.
    """
    config = opened.network.config.get_text_config()
    if set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        raise CheckpointError(f"{path}: the local engine cannot serve layers other than attention")
    try:
        with torch.inference_mode():
            model = _use_cache(opened, config)
            _probe(model, path, most_off)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: {type(config).__name__} failed the probe: {error}"
        ) from error
    return model


def _use_cache(opened: OpenedNetwork, config: Any) -> ServedModel:
    network = opened.network
    ids = torch.zeros(1, 1, dtype=torch.long, device=network.device)
    output = network(input_ids=ids, use_cache=True)
    layers = output.past_key_values.layers
    cache = RowCache(
        torch.stack([layer.keys for layer in layers]),
        torch.stack([layer.values for layer in layers]),
    )
    context = config.max_position_embeddings
    window = getattr(config, "sliding_window", None) or context
    limits = ModelLimits(output.logits.shape[-1], min(context, window))
    return ServedModel(network, limits, cache, opened.base)


def _probe(model: ServedModel, path: Path, most_off: float) -> None:
    """Compare one plain pass with several through the cache; the model keeps our attention.

    The last ones have one token a row, for which there is another attention (`_multiply`).
    """
    network: Any = model.network
    device = model.cache.keys.device
    count = min(PROBE, model.limits.context)
    split = min(SPLIT, count // 2)
    ids = torch.arange(count, device=device)[None] * 7 % model.limits.vocabulary
    plain = torch.log_softmax(network(input_ids=ids).logits[0].float(), dim=-1)
    AttentionInterface.register(GROUPED, grouped_attention)
    network.set_attn_implementation(GROUPED)
    model.cache.reserve(PROBE_ROWS, count)
    positions = torch.arange(count, device=device).repeat(PROBE_ROWS, 1)
    rows = ids.repeat(PROBE_ROWS, 1)
    single = max(0, min(SINGLE, count - split - 1))
    ends = [0, split, *range(count - single, count + 1)]
    found = []
    for start, end in pairwise(ends):
        width = model.cache.decoding_width(PROBE_ROWS, end) if end - start == 1 else end
        found.append(model.logits(0, rows[:, start:end], positions[:, start:end], width, 0)[0])
    logits = torch.cat(found[1:])
    if not torch.isfinite(plain).all():
        raise CheckpointError(f"{path}: the log-probabilities of a fixed prompt are not finite")
    gaps = expected_gap(plain[split:], torch.log_softmax(logits, dim=-1))
    parts = (gaps[: len(gaps) - single], gaps[len(gaps) - single :])
    off = torch.stack([part.median() for part in parts if len(part)]).max().item()
    if not off <= most_off:  # also if it is not a number
        raise CheckpointError(
            f"{path}: {type(model.network).__name__} gives other results with our KV cache:"
            f" median |Δlogp| is {off:.2g}, which exceeds {most_off:g}",
            hint='serve it with policy.engine = "vllm"',
        )


def expected_gap(plain: Tensor, other: Tensor) -> Tensor:
    """Σ p |Δlogp| at each position: [T, vocabulary] log-probabilities twice → [T].

    Improbable tokens differ most by rounding but are rarely sampled, so they have little weight.
    """
    return (plain.exp() * (plain - other).abs()).sum(-1)


def grouped_attention(
    module: nn.Module,  # noqa: ARG001 - the signature of transformers' attention functions
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    """Grouped-query attention: query heads with a common key head become queries of that head.

    query [n, heads, T, d]; key, value [n, kv_heads, W, d]; attention_mask [n, 1, T, W] additive.
    Returns [n, T, heads, d]. transformers copies keys and values per query head at every token,
    which is 2.6 times slower at 64 rows of 200 tokens.
    """
    rows, heads, length, dim = query.shape
    shared = heads // key.shape[1]
    if length == 1 and has_fast_products(key):
        scale = options.get("scaling") or dim**-0.5
        return _multiply(query, key, value, attention_mask, scale), None
    mask = attention_mask if length == 1 else attention_mask.repeat(1, 1, shared, 1)
    folded = query.reshape(rows, key.shape[1], shared * length, dim)
    output = scaled_dot_product_attention(
        folded, key, value, attn_mask=mask, scale=options.get("scaling")
    )
    return output.reshape(rows, heads, length, -1).transpose(1, 2).contiguous(), None


def _multiply(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Like `grouped_attention` for one token a row, with one product for all rows and heads.

    torch's fused kernel makes a small product for each row and head. Here scores are rounded to
    bfloat16, but log-probabilities are not further from those of float32 (docs/measurements.md).
    """
    rows, heads, _, dim = query.shape
    kept, width = key.shape[1], key.shape[2]
    folded = query.reshape(rows * kept, heads // kept, dim)
    masks = mask.expand(rows, kept, 1, width).reshape(rows * kept, 1, width)
    keys, values = (each.view(rows * kept, width, -1) for each in (key, value))
    scores = torch.baddbmm(masks, folded, keys.transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(-1), values).view(rows, 1, heads, -1)
