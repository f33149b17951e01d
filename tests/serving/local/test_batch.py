"""How rows are grouped into passes, and how a batch is given up."""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_device import DEVICE

from agentrl.core.errors import PolicyError
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.local.batch import (
    SHARE,
    Batch,
    Row,
    group_lengths,
    longest_start,
)
from agentrl.serving.local.kv_cache import Prefixes
from agentrl.serving.local.pass_sizes import PassSizes
from agentrl.serving.local.served_model import load_model

Save = Callable[[str], Path]
SIZES = PassSizes.on("cpu")


def test_rows_of_like_length_share_a_pass() -> None:
    assert group_lengths([], SIZES) == []
    assert group_lengths([10, 9, 9], SIZES) == [(0, 3)]
    assert group_lengths([100, 90, 10], SIZES) == [(0, 2), (2, 3)]
    assert group_lengths([512] * 10, SIZES) == [(0, 8), (8, 10)]


@given(st.lists(st.integers(1, 512), max_size=64))
def test_groups_cover_every_row_once_within_their_bounds(lengths: list[int]) -> None:
    ordered = sorted(lengths, reverse=True)
    spans = group_lengths(ordered, SIZES)
    assert [index for start, end in spans for index in range(start, end)] == [*range(len(ordered))]
    for start, end in spans:
        padded = (end - start) * ordered[start]
        assert padded - sum(ordered[start:end]) <= SIZES.waste
        assert padded <= SIZES.group


def test_of_requests_with_one_prompt_the_first_goes_ahead(save_model: Save) -> None:
    batch = Batch("a", load_model(save_model("a"), DEVICE, torch.float32), Prefixes(0), 8)
    request = Request("a", [3] * 100, 2)
    rows = [Row(request, Future[Completion](), random.Random(0), [3] * 100) for _ in range(4)]
    batch.waiting.extend(rows)
    with torch.inference_mode():
        batch.step()
    assert [row.cached for row in rows] == [0, 96, 96, 96]
    assert len({tuple(row.tokens) for row in rows}) == 1


class BrokenDraws(random.Random):
    def random(self) -> float:
        raise PolicyError("the pass failed")


def test_requests_with_one_prompt_are_given_up_together(save_model: Save) -> None:
    """Also those that wait for the first one, whose pass fails."""
    batch = Batch("a", load_model(save_model("a"), DEVICE, torch.float32), Prefixes(0), 8)
    request = Request("a", [1, 2], 2)
    rows = [Row(request, Future[Completion](), BrokenDraws(), [1, 2]) for _ in range(4)]
    batch.waiting.extend(rows)
    with torch.inference_mode(), pytest.raises(PolicyError):
        batch.step()
    batch.abort("the pass failed")
    assert all(isinstance(row.future.exception(0), PolicyError) for row in rows)


def test_a_request_that_is_cancelled_while_it_waits_is_not_computed(save_model: Save) -> None:
    batch = Batch("a", load_model(save_model("a"), DEVICE, torch.float32), Prefixes(0), 1)
    request = Request("a", [1, 2], 1)
    rows = [Row(request, Future[Completion](), random.Random(0), [1, 2]) for _ in range(2)]
    batch.waiting.extend(rows)
    rows[0].future.cancel()
    with torch.inference_mode():
        batch.step()
    assert [row.fed for row in rows] == [0, 2]
    assert rows[1].future.done()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=5), st.data())
def test_the_longest_common_start_is_found(
    others: list[tuple[int, int]], data: st.DataObject
) -> None:
    tokens = [data.draw(st.integers(0, 3))] * data.draw(st.integers(1, 200))
    known = [(index, [token] * length) for index, (token, length) in enumerate(others)]
    found, length = longest_start(tokens, known)
    possible = [
        (min(len(tokens), len(other)) - 1) // SHARE * SHARE if other[:1] == tokens[:1] else 0
        for _, other in known
    ]
    assert length == max([0, *possible])
    assert (found is None) == (length == 0)
    assert found is None or possible[int(str(found))] == length


def test_requests_beyond_the_rows_of_a_batch_wait_and_are_answered(save_model: Save) -> None:
    batch = Batch("a", load_model(save_model("a"), DEVICE, torch.float32), Prefixes(0), 2)
    request = Request("a", [1, 2], 3)
    rows = [Row(request, Future[Completion](), random.Random(n), [1, 2]) for n in range(5)]
    batch.waiting.extend(rows)
    at_once = []
    while batch.busy:
        with torch.inference_mode():  # as the engine's thread does
            batch.step()
        at_once.append(sum(bool(row.fed) and not row.future.done() for row in rows))
    assert max(at_once) == 2
    assert [len(row.future.result(0).token_ids) for row in rows] == [3] * 5


class Raced(deque[Row]):
    """What waits, where another thread appends at the moment it is first read."""

    def __init__(self, rows: Iterable[Row], late: Row) -> None:
        super().__init__(rows)
        self._late = [late]

    def __iter__(self) -> Iterator[Row]:
        yield from [super().popleft() for _ in range(len(self))]
        self.extend(self._late)

    def popleft(self) -> Row:
        row = super().popleft()
        self.extend(self._late)
        self._late.clear()
        return row


def test_a_request_that_comes_while_a_batch_is_given_up_is_answered(save_model: Save) -> None:
    batch = Batch("a", load_model(save_model("a"), DEVICE, torch.float32), Prefixes(0), 8)
    request = Request("a", [1], 1)
    rows = [Row(request, Future[Completion](), random.Random(0), [1]) for _ in range(2)]
    batch.waiting = Raced(rows[:1], rows[1])
    batch.abort("given up")
    assert all(isinstance(row.future.exception(0), PolicyError) for row in rows)
