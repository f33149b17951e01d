"""The KV cache: of running rows, and of conversations that may continue."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from agentrl.core.logging import get_logger
from agentrl.serving.local.packed_linear import multiplies_bfloat16
from agentrl.serving.local.pass_sizes import ROW, double_until, row_length

WINDOW = 4  # capacities: tokens of conversations that went on, after which their losses are judged
LOST_SHARE = 0.2  # of these tokens, above which the cache is too small
LEAST_ENTRIES = 512  # of a head, with which one product is faster than torch's fused kernel
MOST_LOST = 10_000  # evicted conversations that are remembered; most of them have ended


class RowCache(Cache):
    """The KV cache of running rows, written in place and read as views.

    `keys`, `values`: [layers, rows, heads, length, dim]. Before every forward pass, `aim` sets
    which rows run and at which positions they write. Entries beyond a row's own length are stale
    but finite: the causal mask hides them until they are overwritten.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        """keys, values: [layers, 1, heads, any, dim] of any pass; only their shape counts."""
        super().__init__(layers=[])
        self.growths = 0  # how often its storage was replaced
        self.keys = keys[:, :0, :, :0]
        self.values = values[:, :0, :, :0]

    def reserve(self, rows: int, length: int) -> None:
        """Make room for that many rows of that length, and a spare row. Their number doubles."""
        have_rows, have_length = self.values.shape[1] - 1, self.values.shape[3]
        if rows > have_rows or length > have_length:
            device = self.keys.device.type
            more_rows = max(have_rows, double_until(8, rows))
            size = (more_rows + 1, max(have_length, row_length(device, length)))
            self.growths += 1  # first: also if memory ends here, recordings of `keys` are over
            self.keys = _enlarge(self.keys, *size)
            try:
                self.values = _enlarge(self.values, *size)
            except BaseException:
                self.keys = self.keys[:, : have_rows + 1, :, :have_length]
                raise

    def clear(self) -> None:
        """Forget all entries: one that is not finite is not hidden by a mask."""
        self.keys.zero_()
        self.values.zero_()

    @property
    def spare(self) -> int:
        """Return the row that belongs to no request."""
        return self.keys.shape[1] - 1

    def decoding_width(self, rows: int, width: int) -> int:
        """Return the width at which one more token of each row reads `width` entries fastest.

        Rows that are read at full length lie without gaps, and a CPU may multiply them in place.
        """
        length = self.keys.shape[3]
        is_fast = 2 * width > length and has_fast_products(self.keys[0, :rows])
        return length if is_fast else width

    def aim(self, first: int, positions: Tensor, width: int) -> None:
        """Set the next pass: rows first…, written `positions` [n, T], read `width`."""
        end = first + len(positions)
        rows = torch.arange(first, end, device=positions.device)
        self.aim_at(rows, positions, width, slice(first, end))

    def aim_at(
        self, rows: Tensor, positions: Tensor, width: int, read: slice | None = None
    ) -> None:
        """Set the next pass over any rows [n]. `read`: the same rows, where they lie in order.

        Without it their entries are copied to be read.
        """
        self._index = rows[:, None], positions
        self._read = rows if read is None else read
        self._width = width

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        rows, positions = self._index
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[rows, :, positions] = key_states.transpose(1, 2)
        values[rows, :, positions] = value_states.transpose(1, 2)
        return self._entries(keys), self._entries(values)

    def _entries(self, written: Tensor) -> Tensor:
        within = written[:, :, : self._width]
        if isinstance(self._read, slice):
            return within[self._read]
        return within.index_select(0, self._read)

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 - the signature of Cache
        return self._width

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a row's first `length` entries over another row."""
        for cache in (self.keys, self.values):
            cache[:, target, :, :length] = cache[:, source, :, :length]

    def put(self, row: int, keys: Tensor, values: Tensor, length: int) -> None:
        """Start a row with the first `length` of keys and values [layers, heads, any, dim]."""
        self.keys[:, row, :, :length] = keys[:, :, :length]
        self.values[:, row, :, :length] = values[:, :, :length]

    def copy(self, row: int, length: int) -> tuple[Tensor, Tensor]:
        """Copy a row's keys and values [layers, heads, length, dim]."""
        return self.keys[:, row, :, :length].clone(), self.values[:, row, :, :length].clone()


@dataclass(frozen=True, slots=True)
class Prefix:
    """A cached prefix: tokens and their keys and values [layers, heads, tokens, dim]."""

    tokens: Sequence[int]
    keys: Tensor
    values: Tensor

    def common(self, tokens: Sequence[int]) -> int:
        """Return the length of the longest common prefix with `tokens`."""
        pairs = enumerate(zip(self.tokens, tokens, strict=False))
        shorter = min(len(self.tokens), len(tokens))
        return next((index for index, (ours, theirs) in pairs if ours != theirs), shorter)


class Prefixes:
    """An LRU cache of prefixes by policy and session, at most `capacity` tokens.

    It logs when it is too small: conversations that go on have lost their prefix.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._prefixes: OrderedDict[tuple[str, str], Prefix] = OrderedDict()
        self.tokens = 0
        self._lost: OrderedDict[tuple[str, str], int] = OrderedDict()  # evicted, with their length
        self._found_tokens = self._lost_tokens = 0  # of conversations that went on

    def keep(self, policy: str, session: str, prefix: Prefix) -> None:
        key = policy, session
        self._remove(key)
        self._prefixes[key] = prefix
        self.tokens += len(prefix.tokens)
        if len(prefix.tokens) > self._capacity:
            self._prefixes.move_to_end(key, last=False)  # no other one makes room for it
        while self.tokens > self._capacity:
            oldest, evicted = next(iter(self._prefixes.items()))
            self._remove(oldest)
            self._lost[oldest] = len(evicted.tokens)
        while len(self._lost) > MOST_LOST:
            self._lost.popitem(last=False)

    def take(self, policy: str, session: str) -> Prefix | None:
        """Remove and return a prefix; a running row holds its own copy."""
        prefix = self._remove((policy, session))
        self._lost_tokens += self._lost.pop((policy, session), 0)
        self._found_tokens += len(prefix.tokens) if prefix else 0
        self._warn_if_small()
        return prefix

    def _remove(self, key: tuple[str, str]) -> Prefix | None:
        prefix = self._prefixes.pop(key, None)
        if prefix is not None:
            self.tokens -= len(prefix.tokens)
        return prefix

    def _warn_if_small(self) -> None:
        sought = self._found_tokens + self._lost_tokens
        if not sought or sought < WINDOW * self._capacity:
            return
        share = self._lost_tokens / sought
        self._found_tokens = self._lost_tokens = 0
        if share > LOST_SHARE:
            get_logger().warning(
                "Prefix cache too small: conversations that go on are computed again",
                share_lost=round(share, 2),
                cache_tokens=self._capacity,
                hint="raise policy.cache_tokens or lower worker.concurrency",
            )

    def of(self, policy: str) -> Iterator[Prefix]:
        """Yield the prefixes of a policy; they stay."""
        return (prefix for (owner, _), prefix in self._prefixes.items() if owner == policy)

    def drop(self, policy: str) -> None:
        for key in [key for key in self._prefixes if key[0] == policy]:
            self._remove(key)
        for key in [key for key in self._lost if key[0] == policy]:
            del self._lost[key]


def has_fast_products(entries: Tensor) -> bool:
    """Return whether one product with entries [rows, heads, length, dim] is the fastest attention.

    oneDNN multiplies rows without gaps where they are, and copies others first. It prepares a
    kernel for each length; few entries are not worth a product.
    """
    rows, _, length, _ = entries.shape
    is_large = rows * length >= LEAST_ENTRIES and length % ROW == 0
    is_supported = multiplies_bfloat16(entries.device.type, entries.dtype)
    return is_supported and is_large and entries.is_contiguous()


def _enlarge(cache: Tensor, rows: int, length: int) -> Tensor:
    layers, have_rows, heads, have_length, dim = cache.shape
    larger = cache.new_zeros(layers, rows, heads, length, dim)
    larger[:, :have_rows, :, :have_length] = cache
    return larger
