"""Attention of one new token a row, by products of all rows and by torch's fused kernel."""

import pytest
import torch
from torch import Tensor, nn

from agentrl.serving.local.kv_cache import RowCache, has_fast_products
from agentrl.serving.local.packed_linear import multiplies_bfloat16
from agentrl.serving.local.pass_sizes import row_length
from agentrl.serving.local.served_model import grouped_attention

ROWS, HEADS, KEPT, DIM = 5, 6, 2, 8
LENGTHS = (1, 7, 128, 130, 200)
NEEDS_PRODUCTS = pytest.mark.skipif(
    not multiplies_bfloat16("cpu", torch.bfloat16), reason="no bfloat16 in oneDNN"
)


def random_cache(width: int, dtype: torch.dtype) -> RowCache:
    """Make a cache of random entries, of which each row counts its first, up to its length."""
    shape = torch.zeros(1, 1, KEPT, 1, DIM, dtype=dtype)
    cache = RowCache(shape, shape)
    cache.reserve(ROWS, width)
    for entries in (cache.keys, cache.values):
        entries.copy_(torch.randn(entries.shape))
    return cache


def attend(cache: RowCache, query: Tensor, width: int) -> Tensor:
    hidden = torch.arange(width) >= torch.tensor(LENGTHS)[:, None, None, None]
    least = torch.finfo(query.dtype).min
    mask = torch.zeros(hidden.shape, dtype=query.dtype).masked_fill(hidden, least)
    entries = (each[0, :ROWS, :, :width] for each in (cache.keys, cache.values))
    return grouped_attention(nn.Identity(), query, *entries, mask)[0]


@NEEDS_PRODUCTS
def test_rows_read_at_full_length_attend_as_those_read_in_part() -> None:
    torch.manual_seed(0)
    cache = random_cache(200, torch.bfloat16)
    cache.values[0, :, :, 200:] = 1e4  # entries that do not count
    query = torch.randn(ROWS, HEADS, 1, DIM).bfloat16()
    assert has_fast_products(cache.keys[0, :ROWS])
    assert not has_fast_products(cache.keys[0, :ROWS, :, :200])
    whole = attend(cache, query, cache.decoding_width(ROWS, 200))
    part = attend(cache, query, 200)
    assert whole.shape == part.shape == (ROWS, 1, HEADS, DIM)
    assert torch.allclose(whole.float(), part.float(), atol=0.02)
    plain = attend(in_float32(cache), query.float(), 200)
    assert (whole - plain).norm() < 4 * (part - plain).norm()


def in_float32(cache: RowCache) -> RowCache:
    """Return a cache with the same entries in float32."""
    found = RowCache(cache.keys.float(), cache.values.float())
    found.keys, found.values = cache.keys.float(), cache.values.float()
    return found


@NEEDS_PRODUCTS
@pytest.mark.parametrize(
    ("dtype", "width", "read"),
    [
        (torch.bfloat16, 200, 256),
        (torch.bfloat16, 129, 256),
        (torch.bfloat16, 128, 128),  # half of the row: the rest would cost more than a gap
        (torch.float32, 200, 200),
    ],
)
def test_long_rows_are_read_at_full_length_in_bfloat16(
    dtype: torch.dtype, width: int, read: int
) -> None:
    assert random_cache(256, dtype).decoding_width(ROWS, width) == read


@NEEDS_PRODUCTS
def test_few_entries_and_rows_with_gaps_are_not_multiplied() -> None:
    cache = random_cache(256, torch.bfloat16)
    assert not has_fast_products(cache.keys[0, :1])
    assert has_fast_products(cache.keys[0, :2])
    assert cache.decoding_width(1, 200) == 200


def test_rows_of_a_cpu_grow_by_steps_and_those_of_a_gpu_double() -> None:
    tokens = (1, 128, 129, 1000)
    assert [row_length("cpu", each) for each in tokens] == [128, 128, 256, 1024]
    assert [row_length("cuda:0", each) for each in tokens] == [128, 128, 256, 1024]
    assert (row_length("cpu", 1100), row_length("cuda", 1100)) == (1152, 2048)
