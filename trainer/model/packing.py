"""Packs trajectories into forward passes, end to end, without padding.

Batch ─▶ each trajectory up to its last loss token ─┬▶ first fit, longest first ─▶ micro-batches
                                                    └▶ ranks: as many micro-batches for each, of
                                                       equal cost; attention costs length squared

Trajectories of a micro-batch that begin alike, as those of a group do, share their prompt: it is
fed once, as far as its outputs predict no loss token. Each branch of a trajectory that has several
is packed as if it were a trajectory.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.batch import Batch, Ints
from agentrl.trainer.model.attention import ALONE

FEWEST_SHARED = 16  # tokens that are worth a piece of their own
COPY = 1 / 6  # of a token's memory that attention takes again for each trajectory that shares it


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One forward pass over S pieces, T tokens in all, none of it padding.

    `tokens`: [T]; `lengths`: [S] of the pieces; `parents`: [S] of each the index of the piece that
    it continues, or ALONE. A piece is a whole trajectory, the first tokens of some, or the rest of
    one. `predicts`: [K] places in T whose output predicts a loss token; `sources`: [K] where that
    token stands in the Batch; `owners`: [K] which of the S pieces it belongs to. The others, [K],
    are the loss tokens' own of the Batch's fields; `proximal` is empty if the Batch's is. A
    trajectory's loss tokens are all in one piece.
    """

    tokens: Ints
    lengths: tuple[int, ...]
    parents: tuple[int, ...]
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


@dataclass(frozen=True, slots=True)
class _Row:
    """A trajectory: where it starts in the Batch, and how many of its tokens to feed.

    `prompt`: bytes of the first tokens, with which others begin, too; `shared`: their number.
    """

    start: int
    length: int
    prompt: bytes = b""
    shared: int = 0

    def cost(self, attention: float) -> float:
        """Return the cost of what it does not share, in tokens (see `attention_cost`)."""
        return (self.length - self.shared) * (1.0 + attention * (self.length + self.shared))

    def prompt_cost(self, attention: float) -> float:
        return self.shared * (1.0 + attention * self.shared)


class _Pass:
    """A micro-batch that is being filled. `size`: in tokens, by memory; `cost`: see `_Row.cost`."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.size, self.cost = 0, 0.0
        self._prompts: set[bytes] = set()

    @classmethod
    def of(cls, rows: Sequence[_Row]) -> "_Pass":
        found = cls()
        for row in rows:
            found.add(row)
        return found

    def added_size(self, row: _Row) -> int:
        own = row.length - row.shared + math.ceil(COPY * row.shared)
        return own if row.prompt in self._prompts else own + row.shared

    def cost_with(self, row: _Row, attention: float) -> float:
        cost = self.cost + row.cost(attention)
        return cost if row.prompt in self._prompts else cost + row.prompt_cost(attention)

    def add(self, row: _Row, attention: float = 0.0) -> None:
        self.size += self.added_size(row)
        self.cost = self.cost_with(row, attention)
        self.rows.append(row)
        self._prompts |= {row.prompt}


def micro_batches(batch: Batch, max_tokens: int) -> list[MicroBatch]:
    """Split the batch into micro-batches of at most `max_tokens` tokens, fullest first.

    A longer trajectory has its own micro-batch; one without loss tokens has none. Tokens after the
    last loss token are left out, because they predict nothing that is trained.
    """
    passes = _first_fit(_read_rows(batch), max_tokens)
    found = [_pack_rows(batch, each.rows) for each in passes]
    return sorted(found, key=lambda micro: -micro.tokens.size)


def balance_ranks(
    batch: Batch, max_tokens: int, ranks: int, attention: float
) -> list[list[MicroBatch]]:
    """Split the batch for R ranks: equally many micro-batches each, of similar cost in each pass.

    `attention`: from `attention_cost`. A micro-batch has at most `max_tokens`, or one longer
    trajectory. Missing ones are empty: a rank without work still takes part in collective
    operations.
    """
    filled = _equal_costs(_read_rows(batch), attention, max_tokens, ranks)
    filled.sort(key=lambda each: -each.cost)
    passes = [filled[start : start + ranks] for start in range(0, len(filled), ranks)]
    for every_other in passes[1::2]:
        every_other.reverse()
    return [
        [
            _pack_rows(batch, own[rank].rows) if own[rank].rows else empty_micro_batch()
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
        parents=(ALONE,),
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


def _read_rows(batch: Batch) -> list[_Row]:
    """Return the trajectories with loss tokens; those that share a prompt follow each other.

    The largest share, or single trajectory, comes first, and in it the longest trajectory.
    """
    families: dict[bytes | int, list[_Row]] = {}
    starts = np.cumsum(batch.sequences) - batch.sequences
    for index, (start, count) in enumerate(zip(starts.tolist(), batch.sequences, strict=True)):
        learned = np.flatnonzero(batch.loss_mask[start : start + count])
        if not learned.size:
            continue
        length, shared = int(learned[-1]), int(learned[0]) - 1  # the next output is trained
        prompt = batch.tokens[start : start + shared].tobytes() if shared >= FEWEST_SHARED else b""
        families.setdefault(prompt or index, []).append(_Row(start, length, prompt, shared))
    found = [
        family if len(family) > 1 else [replace(family[0], prompt=b"", shared=0)]
        for family in families.values()
    ]
    found.sort(key=lambda family: -_Pass.of(family).size)
    return [row for family in found for row in sorted(family, key=lambda each: -each.length)]


def _first_fit(rows: Sequence[_Row], max_tokens: int) -> list[_Pass]:
    """Assign each trajectory to where it adds least, of the micro-batches with room."""
    passes: list[_Pass] = []
    for row in rows:
        fits = [each for each in passes if each.size + each.added_size(row) <= max_tokens]
        if not fits:
            passes.append(_Pass())
        place = min(fits or passes[-1:], key=lambda each: each.added_size(row))
        place.add(row)
    return passes


def _equal_costs(
    rows: Sequence[_Row], attention: float, max_tokens: int, ranks: int
) -> list[_Pass]:
    """Assign trajectories to a multiple of `ranks` micro-batches of similar cost.

    Each goes to where the cost is lowest then, of the micro-batches with room; if there is none,
    there are more micro-batches.
    """
    passes = -(-min(len(rows), -(-_Pass.of(rows).size // max_tokens)) // ranks)
    while (found := _cheapest_fit(rows, attention, max_tokens, passes * ranks)) is None:
        passes += 1
    return found


def _cheapest_fit(
    rows: Sequence[_Row], attention: float, max_tokens: int, count: int
) -> list[_Pass] | None:
    """Assign trajectories to `count` micro-batches; return None if one does not fit."""
    passes = [_Pass() for _ in range(count)]
    for row in rows:
        fits = [p for p in passes if not p.rows or p.size + p.added_size(row) <= max_tokens]
        if not fits:
            return None
        min(fits, key=lambda each: each.cost_with(row, attention)).add(row, attention)
    return passes


def _spans(rows: Sequence[_Row]) -> list[tuple[int, int, int]]:
    """Return where each piece starts in the Batch, its length, and its parent."""
    spans: list[tuple[int, int, int]] = []
    of_prompts = Counter(row.prompt for row in rows)
    parents: dict[bytes, int] = {}
    for row in rows:
        shared = row.shared if of_prompts[row.prompt] > 1 else 0
        if shared and row.prompt not in parents:
            parents[row.prompt] = len(spans)
            spans.append((row.start, shared, ALONE))
        parent = parents[row.prompt] if shared else ALONE
        spans.append((row.start + shared, row.length - shared, parent))
    return spans


def _pack_rows(batch: Batch, rows: Sequence[_Row]) -> MicroBatch:
    spans = _spans(rows)
    _, lengths, parents = zip(*spans, strict=True)
    places = np.concatenate([np.arange(begin, begin + n) for begin, n, _ in spans])
    predicts = np.flatnonzero(batch.loss_mask[places + 1])
    owners = np.repeat(np.arange(len(spans)), lengths)[predicts]
    sources = places[predicts] + 1
    untaught = np.zeros(sources.size, np.float32)
    taught = batch.teacher_weights.size
    return MicroBatch(
        tokens=batch.tokens[places],
        lengths=lengths,
        parents=parents,
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
