"""Kept prefixes and the rows' cache."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from torch_device import DEVICE

from agentrl.serving.local.kv_cache import Prefix, Prefixes, RowCache

few_tokens = st.lists(st.integers(0, 2), max_size=8)


def prefix(count: int) -> Prefix:
    return Prefix(list(range(count)), *torch.zeros(2, 1, 1, count, 2, device=DEVICE))


@given(few_tokens, few_tokens)
def test_the_common_prefix_is_as_long_as_it_can_be(kept: list[int], asked: list[int]) -> None:
    common = Prefix(kept, torch.empty(0), torch.empty(0)).common(asked)
    assert kept[:common] == asked[:common]
    assert kept[: common + 1] != asked[: common + 1] or common == len(kept) == len(asked)


def test_the_least_recently_kept_prefix_goes_first() -> None:
    prefixes = Prefixes(capacity=10)
    for session in "abc":
        prefixes.keep("policy", session, prefix(4))
    assert prefixes.tokens == 8
    assert prefixes.take("policy", "a") is None
    assert prefixes.take("policy", "b") is not None
    assert prefixes.tokens == 4


def test_a_prefix_larger_than_the_bound_is_not_kept_and_the_others_stay() -> None:
    prefixes = Prefixes(capacity=3)
    prefixes.keep("policy", "a", prefix(2))
    prefixes.keep("policy", "b", prefix(4))
    assert prefixes.take("policy", "b") is None
    assert prefixes.take("policy", "a") is not None
    assert prefixes.tokens == 0


def test_a_conversation_that_outgrows_the_cache_counts_as_lost() -> None:
    prefixes = Prefixes(capacity=3)
    with capture_logs() as logged:
        for _ in range(4):
            prefixes.take("policy", "a")
            prefixes.keep("policy", "a", prefix(4))
    assert [line["share_lost"] for line in logged] == [1.0]


def test_dropping_a_policy_leaves_the_others() -> None:
    prefixes = Prefixes(capacity=100)
    prefixes.keep("one", "a", prefix(4))
    prefixes.keep("two", "a", prefix(5))
    prefixes.drop("one")
    assert prefixes.tokens == 5
    assert prefixes.take("one", "a") is None


@pytest.mark.parametrize(("sessions", "share"), [("ab", None), ("abc", 1.0)])
def test_a_cache_that_loses_conversations_that_go_on_says_so(
    sessions: str, share: float | None
) -> None:
    prefixes = Prefixes(capacity=10)
    with capture_logs() as logged:
        for session in sessions * 8:
            prefixes.take("policy", session)
            prefixes.keep("policy", session, prefix(5))
    found = [line["share_lost"] for line in logged]
    assert set(found) == ({share} if share else set())
    assert all(line["hint"].startswith("raise policy.cache_tokens") for line in logged)


def test_conversations_that_ended_are_not_missed() -> None:
    prefixes = Prefixes(capacity=10)
    with capture_logs() as logged:
        for number in range(100):
            prefixes.keep("policy", str(number), prefix(5))
            prefixes.take("policy", str(number))
    assert not logged


def test_growing_keeps_what_rows_hold() -> None:
    shape = torch.zeros(2, 1, 3, 1, 4, device=DEVICE)
    cache = RowCache(shape, shape[..., :2])
    cache.reserve(1, 5)
    keys, values = (torch.rand(2, 3, 5, width, device=DEVICE) for width in (4, 2))
    cache.put(0, keys, values, 5)
    cache.reserve(40, 1000)
    assert cache.keys.shape[1] >= 40
    assert cache.keys.shape[3] >= 1000
    cache.move(0, 39, 5)
    for row in (0, 39):
        kept = cache.copy(row, 5)
        assert torch.equal(kept[0], keys)
        assert torch.equal(kept[1], values)


def test_rows_that_fit_are_not_copied() -> None:
    shape = torch.zeros(1, 1, 1, 1, 2, device=DEVICE)
    cache = RowCache(shape, shape)
    cache.reserve(8, 128)
    keys = cache.keys
    cache.reserve(8, 128)
    assert cache.keys is keys
    cache.reserve(9, 1)
    assert cache.keys is not keys


def test_a_cache_that_could_not_grow_keeps_its_size_and_may_grow_later() -> None:
    """The values are so much larger than the keys that memory ends between the two."""
    keys = torch.zeros(1, 1, 1, 1, 0, dtype=torch.int8)
    cache = RowCache(keys, torch.zeros(1, 1, 1, 1, 4096, dtype=torch.int8))
    cache.reserve(1, 1)
    sizes = cache.keys.shape[:4]
    for needed in ((2**31, 1), (1, 2**31)):
        with pytest.raises(RuntimeError):
            cache.reserve(*needed)
        assert cache.keys.shape[:4] == cache.values.shape[:4] == sizes
        assert cache.spare == cache.values.shape[1] - 1
    cache.reserve(9, 1)
    assert cache.keys.shape[:4] == cache.values.shape[:4] > sizes
