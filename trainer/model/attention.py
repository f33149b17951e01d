"""Attention over packed trajectories: none attends to another.

[1, heads, T, D] ─▶ split by trajectory ─▶ causal attention of each ─▶ joined

transformers calls `attend` instead of its own attention and passes the lengths with which the model
was called. Cost and memory are those of the single trajectories; a mask over the whole row would
cost T². A GPU, to which launching kernels for each trajectory costs more than computing them,
attends to trajectories of like length together, padded to the longest.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from agentrl.core.errors import CheckpointError
from agentrl.trainer.model.last_layer import READ, skip_unread_rows

NAME = "agentrl_packed"
LENGTHS = "packed_lengths"  # the keyword that transformers hands through
UNKNOWN = ("softcap", "s_aux", "position_bias")  # changes of the scores that `attend` leaves out
PROBE = (5, 12, 9)  # lengths of its trajectories
NEAR = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 3e-3}  # relative, of states
HINT = "set trainer.packing = false"


def pack(model: Any, *, is_checked: bool = True, pads: bool | None = None) -> None:
    """Prepare a transformers model for packed trajectories.

    `is_checked`: compare packed trajectories with separate ones, which needs the model's weights.
    `pads`: attend to those of like length together, padded; None: on a GPU. Raises CheckpointError
    if its output for a trajectory would depend on its neighbours.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = NAME if pads is None else f"{NAME}_{'padded' if pads else 'apart'}"
    ALL_ATTENTION_FUNCTIONS.register(name, partial(attend, pads=pads))
    kind, config = type(model).__name__, model.config.get_text_config()
    chunked = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    if chunked or not getattr(model, "_supports_flash_attn", False):
        raise CheckpointError(f"{kind}: its attention cannot be packed", hint=HINT)
    if not is_checked:
        model.set_attn_implementation(name)
        model.spares = skip_unread_rows(model)
        return
    tokens = (torch.arange(sum(PROBE)) * 7 + 3) % config.vocab_size
    read = torch.arange(0, tokens.numel(), 2)
    with torch.no_grad():
        alone = [
            hidden_states(model, each, (each.numel(),)) for each in torch.split(tokens, list(PROBE))
        ]
        model.set_attn_implementation(name)
        together = torch.split(hidden_states(model, tokens, PROBE), list(PROBE))
        model.spares = skip_unread_rows(model)
        some = hidden_states(model, tokens, PROBE, read)
    for apart, joint in zip(alone, together, strict=True):
        if not _near(joint, apart, model.dtype):
            raise CheckpointError(f"{kind}: packed trajectories attend to each other", hint=HINT)
    model.spares &= _near(some, torch.cat(alone)[read.to(some.device)], model.dtype)


def _near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    return bool((found - expected).norm() <= NEAR[dtype] * expected.norm())


def hidden_states(
    model: Any, tokens: Tensor, lengths: tuple[int, ...], read: Tensor | None = None
) -> Tensor:
    """Return [T, H] last hidden states of packed trajectories with tokens [T].

    More than one needs a model prepared by `pack`. `read`: [K] places; returns [K, H] of those
    only.
    """
    options: dict[str, Any] = {}
    if len(lengths) > 1:
        positions = torch.cat([torch.arange(length) for length in lengths])
        options = {"position_ids": positions[None].to(model.device), LENGTHS: lengths}
    read = None if read is None else read.to(model.device)
    if read is not None and getattr(model, "spares", False):
        # Of none, one: ZeRO 3 meets at each module, in the order of the graph, alike on every rank.
        options[READ] = read if read.numel() else read.new_zeros(1)
    row = tokens[None].to(model.device)
    output = model.base_model(input_ids=row, use_cache=False, **options)
    found: Tensor = output.last_hidden_state[0]
    return found if read is None else found.index_select(0, read)


def attend(  # noqa: PLR0913 - the signature of attention functions, and `pads`
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    pads: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function for transformers: returns ([B, T, heads, D], None).

    query: [B, heads, T, D]; key, value: [B, key heads, T, D]. Without lengths each of the B rows is
    one trajectory. `pads`: see `pack`. Raises CheckpointError for unsupported scores or masks.
    """
    found = [name for name in UNKNOWN if options.get(name) is not None]
    if found or mask is not None or options.get("is_causal") is False:
        what = ", ".join(found) or "a mask of its own"
        raise CheckpointError(f"{type(module).__name__}: {what} cannot be packed", hint=HINT)
    # Under autocast rotary positions and norms leave queries and keys in fp32, values in bf16.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if query.shape[1] != key.shape[1] and not _groups(query):
        times = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(times, dim=1) for each in (key, value))
    lengths = list(options.get(LENGTHS) or query.shape[2:3])
    window, scale = options.get("sliding_window"), options.get("scaling")
    is_windowed = window is not None and max(lengths) > window
    pads = query.is_cuda if pads is None else pads
    if pads and len(lengths) > 1 and not is_windowed:
        return _padded_attention(query, key, value, tuple(lengths), scale), None
    parts = (torch.split(each, lengths, dim=2) for each in (query, key, value))
    outputs = [
        _windowed_attention(q, k, v, window, scale)
        if window is not None and q.shape[2] > window
        else _causal_attention(q, k, v, scale)
        for q, k, v in zip(*parts, strict=True)
    ]
    apart = [each.transpose(1, 2) for each in outputs]
    return (torch.cat(apart, dim=1) if len(apart) > 1 else apart[0].contiguous()), None


@dataclass(frozen=True, slots=True)
class _Block:
    """Trajectories of like length. `tokens`: [K] of the packed row; `places`: [K] theirs in
    `count` padded rows of `width`.
    """

    tokens: Tensor
    places: Tensor
    count: int
    width: int


def _padded_attention(
    query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], scale: float | None
) -> Tensor:
    """Causal attention of each trajectory: [1, heads, T, D] → [1, T, heads, D].

    Padding follows a trajectory's tokens, so none of them sees it.
    """
    output = value.new_zeros(query.shape[2], query.shape[1], value.shape[3])
    for block in _blocks(lengths, query.device):
        q, k, v = (_pad_block(each, block) for each in (query, key, value))
        found = _causal_attention(q, k, v, scale).transpose(1, 2).flatten(0, 1)
        output = output.index_copy(0, block.tokens, found.index_select(0, block.places))
    return output[None]


@lru_cache(maxsize=8)
@torch.inference_mode(mode=False)  # what is kept may later be needed by a backward pass
def _blocks(lengths: tuple[int, ...], device: torch.device) -> list[_Block]:
    """Group trajectories of a packed row whose lengths differ by less than a factor of two."""
    alike: dict[int, list[Tensor]] = {}
    for tokens in torch.split(torch.arange(sum(lengths)), list(lengths)):
        alike.setdefault(len(tokens).bit_length(), []).append(tokens)
    blocks = []
    for rows in alike.values():
        width = max(map(len, rows))
        places = [start * width + torch.arange(len(row)) for start, row in enumerate(rows)]
        tokens, padded = torch.cat(rows).to(device), torch.cat(places).to(device)
        blocks.append(_Block(tokens, padded, len(rows), width))
    return blocks


def _pad_block(states: Tensor, block: _Block) -> Tensor:
    """Return the block's rows [count, heads, width, D] of packed states [1, heads, T, D]."""
    heads, width = states.shape[1], states.shape[3]
    padded = states.new_zeros(block.count * block.width, heads, width)
    taken = states[0].transpose(0, 1).index_select(0, block.tokens)
    filled = padded.index_copy(0, block.places, taken)
    return filled.view(block.count, block.width, heads, width).transpose(1, 2)


def _causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=grouped
    )


def _windowed_attention(
    query: Tensor, key: Tensor, value: Tensor, window: int, scale: float | None
) -> Tensor:
    """Sliding-window attention: each token sees itself and `window` − 1 before it; linear memory.

    Tokens are in blocks of a window's size: a block sees itself and the block before it.
    """
    length, blocks = query.shape[2], -(-query.shape[2] // window)
    q, k, v = (_split_blocks(each, blocks, window) for each in (query, key, value))
    first = _causal_attention(q[:, 0], k[:, 0], v[:, 0], scale)
    at = torch.arange(window, device=query.device)[:, None]
    seen = torch.arange(2 * window, device=query.device)
    rest = scaled_dot_product_attention(
        q[:, 1:].flatten(0, 1),
        torch.cat([k[:, :-1], k[:, 1:]], dim=3).flatten(0, 1),
        torch.cat([v[:, :-1], v[:, 1:]], dim=3).flatten(0, 1),
        (seen > at) & (seen <= at + window),
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    every = torch.cat([first[:, None], rest.reshape_as(q[:, 1:])], dim=1)
    return every.transpose(1, 2).flatten(2, 3)[:, :, :length]


def _split_blocks(states: Tensor, blocks: int, size: int) -> Tensor:
    """Reshape [B, heads, T, D] to [B, blocks, heads, size, D], padded with zeros."""
    batch, heads, length, width = states.shape
    filled = pad(states, (0, 0, 0, blocks * size - length))
    return filled.reshape(batch, heads, blocks, size, width).transpose(1, 2)


def _groups(query: Tensor) -> bool:
    """Return whether torch's linear-memory kernels support grouped queries here."""
    return query.device.type == "cpu" or query.dtype in (torch.float16, torch.bfloat16)
