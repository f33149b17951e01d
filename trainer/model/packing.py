"""Packs trajectories into forward passes, end to end, without padding.

Batch ─▶ each trajectory up to its last loss token ─┬▶ first fit, longest first ─▶ micro-batches
                                                    └▶ ranks: as many micro-batches for each, of
                                                       equal cost; attention costs length squared

Each branch of a trajectory that has several is packed as if it were a trajectory.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.batch import Batch, Bools, Ints

Costs = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One forward pass over S trajectories, T tokens in all, none of it padding.

    `tokens`: [T]; `lengths`: [S] of the trajectories, each of which begins at position 0.
    `predicts`: [K] places in T whose output predicts a loss token; `sources`: [K] where that token
    stands in the Batch; `owners`: [K] which of the S trajectories it belongs to. The others, [K],
    are the loss tokens' own of the Batch's fields; `proximal` is empty if the Batch's is. A
    trajectory's loss tokens are all in one micro-batch.
    """

    tokens: Ints
    lengths: tuple[int, ...]
    predicts: Ints
    sources: Ints
    owners: Ints
    targets: Ints
    behaviour: Floats
    temperature: Floats
    advantages: Floats
    shares: Floats
    teacher_logprobs: Floats
    teacher_weights: Floats
    proximal: Floats


def micro_batches(batch: Batch, max_tokens: int) -> list[MicroBatch]:
    """Split the batch into micro-batches of at most `max_tokens` tokens, fullest first.

    A longer trajectory has its own micro-batch; one without loss tokens has none. Tokens after the
    last loss token are left out, because they predict nothing that is trained.
    """
    needed = _read_lengths(batch)
    rows = _first_fit(needed, max_tokens)
    found = [_pack_rows(batch, needed, np.array(each)) for each in rows]
    return sorted(found, key=lambda micro: -micro.tokens.size)


def balance_ranks(
    batch: Batch, max_tokens: int, ranks: int, attention: float
) -> list[list[MicroBatch]]:
    """Split the batch for R ranks: equally many micro-batches each, of similar cost in each pass.

    `attention`: from `attention_cost`. A micro-batch has at most `max_tokens`, or one longer
    trajectory. Missing ones are empty: a rank without work still takes part in collective
    operations.
    """
    needed = _read_lengths(batch)
    costs = needed * (1.0 + attention * needed)
    rows = _equal_costs(needed, costs, max_tokens, ranks)
    rows.sort(key=lambda each: -costs[each].sum())
    passes = [rows[start : start + ranks] for start in range(0, len(rows), ranks)]
    for every_other in passes[1::2]:
        every_other.reverse()
    return [
        [
            _pack_rows(batch, needed, np.array(own[rank])) if own[rank] else empty_micro_batch()
            for own in passes
        ]
        for rank in range(ranks)
    ]


def attention_cost(model: Any) -> float:
    """Return the cost of attending to one earlier token, relative to a token's cost in the weights.

    A trajectory of L tokens costs L · (1 + attention · L). Causal attention takes 2 · L² · Q
    operations per layer (Q: width of the queries), a weight below the head 2 · L.
    """
    config, base = model.config.get_text_config(), model.base_model
    weights = sum(_count(each) for each in base.parameters())
    weights -= sum(_count(each) for each in model.get_input_embeddings().parameters())
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return float(config.num_hidden_layers * width / max(1, weights))


def empty_micro_batch() -> MicroBatch:
    """A forward pass over one token that trains nothing."""
    one, places, values = np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
    return MicroBatch(
        tokens=one,
        lengths=(1,),
        predicts=places,
        sources=places,
        owners=places,
        targets=places,
        behaviour=values,
        temperature=values,
        advantages=values,
        shares=values,
        teacher_logprobs=values,
        teacher_weights=values,
        proximal=values,
    )


def _count(parameter: Any) -> int:
    """Count the elements of a weight, also of one that ZeRO 3 has sharded."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _read_lengths(batch: Batch) -> Ints:
    """Return [M]: number of tokens to feed of each trajectory."""
    ends = np.cumsum(batch.sequences)
    masks = np.split(batch.loss_mask, ends[:-1]) if ends.size else []
    return np.array([_inputs(mask) for mask in masks], np.int64)


def _inputs(mask: Bools) -> int:
    chosen = np.flatnonzero(mask)
    return int(chosen[-1]) if chosen.size else 0


def _first_fit(needed: Ints, max_tokens: int) -> list[list[int]]:
    """Assign trajectories to micro-batches: longest first, each to the first with room."""
    rows: list[list[int]] = []
    rooms: list[int] = []
    for row in np.argsort(-needed, kind="stable").tolist():
        length = int(needed[row])
        if not length:
            break
        place = next((n for n, room in enumerate(rooms) if room >= length), len(rows))
        if place == len(rows):
            rows.append([])
            rooms.append(max_tokens)
        rows[place].append(row)
        rooms[place] -= length
    return rows


def _equal_costs(needed: Ints, costs: Costs, max_tokens: int, ranks: int) -> list[list[int]]:
    """Assign trajectories to a multiple of `ranks` micro-batches of similar cost.

    The longest come first, each into the cheapest micro-batch with room; if there is none, there
    are more micro-batches.
    """
    order = [row for row in np.argsort(-needed, kind="stable").tolist() if needed[row]]
    passes = -(-min(len(order), -(-int(needed.sum()) // max_tokens)) // ranks)
    while (found := _cheapest_fit(order, needed, costs, max_tokens, passes * ranks)) is None:
        passes += 1
    return found


def _cheapest_fit(
    order: list[int], needed: Ints, costs: Costs, max_tokens: int, count: int
) -> list[list[int]] | None:
    """Assign trajectories to `count` micro-batches; return None if one does not fit."""
    rows: list[list[int]] = [[] for _ in range(count)]
    tokens, spent = np.zeros(count, np.int64), np.zeros(count)
    for row in order:
        fits = (tokens == 0) | (tokens + needed[row] <= max_tokens)
        if not fits.any():
            return None
        place = int(np.argmin(np.where(fits, spent, np.inf)))
        rows[place].append(row)
        tokens[place] += needed[row]
        spent[place] += costs[row]
    return rows


def _pack_rows(batch: Batch, needed: Ints, rows: Ints) -> MicroBatch:
    starts = (np.cumsum(batch.sequences) - batch.sequences)[rows]
    lengths = needed[rows]
    before = np.cumsum(lengths) - lengths
    places = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    predicts = np.flatnonzero(batch.loss_mask[places + 1])
    owners = np.repeat(np.arange(rows.size), lengths)[predicts]
    sources = places[predicts] + 1
    untaught = np.zeros(sources.size, np.float32)
    taught = batch.teacher_weights.size
    return MicroBatch(
        tokens=batch.tokens[places],
        lengths=tuple(lengths.tolist()),
        predicts=predicts,
        sources=sources,
        owners=owners,
        targets=batch.tokens[sources],
        behaviour=batch.behaviour[sources],
        temperature=batch.temperature[sources],
        advantages=batch.advantages[sources],
        shares=batch.shares[sources],
        teacher_logprobs=batch.teacher_logprobs[sources] if taught else untaught,
        teacher_weights=batch.teacher_weights[sources] if taught else untaught,
        proximal=batch.proximal[sources] if batch.proximal.size else batch.proximal,
    )
