"""Packs trajectories into forward passes, end to end, without padding.

Batch ─▶ each trajectory up to its last loss token ─▶ first fit, longest first ─▶ micro-batches
      ─▶ dealt over ranks, the same number to each
"""

from dataclasses import dataclass

import numpy as np

from agentrl.trainer.batch import Batch, Bools, Ints


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One forward pass over S trajectories, T tokens in all, none of it padding.

    `tokens`: [T]. `lengths`: [S] of the trajectories, each starting at position 0. `predicts`: [K]
    places in T whose output predicts a loss token. `sources`: [K] place of that token in the Batch.
    `owners`: [K] index of its trajectory below S. All loss tokens of a trajectory are in one
    micro-batch.
    """

    tokens: Ints
    lengths: tuple[int, ...]
    predicts: Ints
    sources: Ints
    owners: Ints


def micro_batches(batch: Batch, max_tokens: int) -> list[MicroBatch]:
    """Split the batch into micro-batches of at most `max_tokens` tokens, fullest first.

    A longer trajectory has its own micro-batch; one without loss tokens has none. Tokens after the
    last loss token are left out, because they predict nothing that is trained.
    """
    needed = _read_lengths(batch)
    rows = _first_fit(needed, max_tokens)
    found = [_pack_rows(batch, needed, np.array(each)) for each in rows]
    return sorted(found, key=lambda micro: -micro.tokens.size)


def balance_over_ranks(batch: Batch, max_tokens: int, ranks: int) -> list[list[MicroBatch]]:
    """Like `micro_batches`, for R ranks: the same number for each, with balanced tokens.

    Empty micro-batches fill the gaps, because every rank takes part in collective operations. If
    the batch would not fill one micro-batch per rank, they are smaller.
    """
    even = -(-int(_read_lengths(batch).sum()) // ranks)
    micros = micro_batches(batch, max(1, min(max_tokens, even)))
    most = -(-len(micros) // ranks)
    dealt: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    for micro in micros:
        open_ranks = [each for each in dealt if len(each) < most]
        min(open_ranks, key=lambda each: sum(m.tokens.size for m in each)).append(micro)
    return [each + [empty_micro_batch()] * (most - len(each)) for each in dealt]


def empty_micro_batch() -> MicroBatch:
    """Return a micro-batch of one token that trains nothing."""
    one, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    return MicroBatch(one, (1,), none, none, none)


def _read_lengths(batch: Batch) -> Ints:
    """Return [M]: number of tokens to feed of each trajectory."""
    ends = np.cumsum(batch.lengths)
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


def _pack_rows(batch: Batch, needed: Ints, rows: Ints) -> MicroBatch:
    starts = (np.cumsum(batch.lengths) - batch.lengths)[rows]
    lengths = needed[rows]
    before = np.cumsum(lengths) - lengths
    places = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    predicts = np.flatnonzero(batch.loss_mask[places + 1])
    owners = np.repeat(np.arange(rows.size), lengths)[predicts]
    return MicroBatch(
        tokens=batch.tokens[places],
        lengths=tuple(lengths.tolist()),
        predicts=predicts,
        sources=places[predicts] + 1,
        owners=owners,
    )
