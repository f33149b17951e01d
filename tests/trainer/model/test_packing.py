from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.core.config.sections.training import Trainer
from agentrl.core.trajectory import BranchPoint, Trajectory
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.model.attention import ALONE
from agentrl.trainer.model.packing import (
    FEWEST_SHARED,
    MicroBatch,
    attention_cost,
    balance_ranks,
    empty_micro_batch,
    micro_batches,
)

MakeTrajectory = Callable[..., Trajectory]
Shapes = list[tuple[int, int, int]]
PLAIN = resolve_settings(Trainer(normalise="none"))
SHAPES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=12
)
PROMPTED = st.lists(
    st.tuples(st.sampled_from([1, 17, 30, 31]), st.integers(0, 6), st.integers(0, 5)),
    min_size=1,
    max_size=12,
)


def _batch(make_trajectory: MakeTrajectory, shapes: Shapes) -> Batch:
    """Trajectories of one span each: tokens before it, in it, after it."""
    members = tuple(
        make_trajectory([(start, start + size)], start + size + rest, seed=seed)
        for seed, (start, size, rest) in enumerate(shapes)
    )
    return assemble_batch([TrainableGroup("g", "db", members)], PLAIN)


def _with_prompts(batch: Batch, shapes: Shapes) -> Batch:
    """The same, but trajectories whose spans begin at the same place have the same prompt."""
    tokens, starts = batch.tokens.copy(), np.cumsum(batch.lengths) - batch.lengths
    for start, (prompt, _, _) in zip(starts, shapes, strict=True):
        tokens[start : start + prompt] = 7
    return replace(batch, tokens=tokens)


def _hold_every_loss_token_once(batch: Batch, micros: Sequence[MicroBatch]) -> None:
    """And before each stand exactly the tokens of its trajectory that precede it, shared or not."""
    first = np.repeat(np.cumsum(batch.lengths) - batch.lengths, batch.lengths)
    seen: list[int] = []
    for micro in micros:
        assert sum(micro.lengths) == micro.tokens.size
        starts = np.cumsum(micro.lengths) - micro.lengths
        seen += micro.sources.tolist()
        for place, source, owner in zip(micro.predicts, micro.sources, micro.owners, strict=True):
            assert starts[owner] <= place < starts[owner] + micro.lengths[owner]
            fed = micro.tokens[starts[owner] : place + 1].tolist()
            if (parent := micro.parents[owner]) != ALONE:
                assert micro.parents[parent] == ALONE
                assert parent < owner
                end = starts[parent] + micro.lengths[parent]
                fed = micro.tokens[starts[parent] : end].tolist() + fed
            assert fed == batch.tokens[first[source] : source].tolist()
    assert sorted(seen) == np.flatnonzero(batch.loss_mask).tolist()


@given(SHAPES, st.integers(1, 40))
def test_micro_batches_hold_every_loss_token_once_within_the_budget(
    make_trajectory: MakeTrajectory, shapes: Shapes, budget: int
) -> None:
    batch = _batch(make_trajectory, shapes)
    micros = micro_batches(batch, budget)
    _hold_every_loss_token_once(batch, micros)
    sizes = [micro.tokens.size for micro in micros]
    assert sizes == sorted(sizes, reverse=True)
    assert all(len(m.lengths) == 1 or m.tokens.size <= budget for m in micros)
    assert all(m.predicts.size for m in micros)


@given(SHAPES, st.integers(1, 40), st.integers(1, 4), st.sampled_from([0.0, 0.1, 5.0]))
def test_ranks_get_the_same_number_of_micro_batches_and_every_loss_token_once(
    make_trajectory: MakeTrajectory, shapes: Shapes, budget: int, ranks: int, attention: float
) -> None:
    batch = _batch(make_trajectory, shapes)
    dealt = balance_ranks(batch, budget, ranks, attention)
    assert len(dealt) == ranks
    assert len({len(each) for each in dealt}) == 1
    _hold_every_loss_token_once(batch, [m for each in dealt for m in each])
    assert all(len(m.lengths) == 1 or m.tokens.size <= budget for each in dealt for m in each)
    again = balance_ranks(batch, budget, ranks, attention)
    places = [[[m.sources.tolist() for m in each] for each in found] for found in (dealt, again)]
    assert places[0] == places[1]


@given(PROMPTED, st.integers(1, 120), st.integers(1, 4), st.sampled_from([0.0, 0.1]))
def test_a_prompt_that_trajectories_share_is_fed_once_in_each_micro_batch(
    make_trajectory: MakeTrajectory, shapes: Shapes, budget: int, ranks: int, attention: float
) -> None:
    batch = _with_prompts(_batch(make_trajectory, shapes), shapes)
    micros = micro_batches(batch, budget)
    dealt = balance_ranks(batch, budget, ranks, attention)
    for found in (micros, [micro for own in dealt for micro in own]):
        _hold_every_loss_token_once(batch, found)
        assert all(len(m.lengths) == 1 or m.tokens.size <= budget for m in found)
        for micro in found:
            pieces = np.split(micro.tokens, np.cumsum(micro.lengths)[:-1])
            prompts = [pieces[parent].tobytes() for parent in set(micro.parents) - {ALONE}]
            shared = [micro.lengths[parent] for parent in set(micro.parents) - {ALONE}]
            assert all(length >= FEWEST_SHARED for length in shared)
            assert len(set(prompts)) == len(prompts)


def test_a_group_needs_its_prompt_once(make_trajectory: MakeTrajectory) -> None:
    shapes = [(40, 3, 0), (40, 5, 2), (40, 1, 0), (40, 0, 3), (10, 2, 0)]
    (micro,) = micro_batches(_with_prompts(_batch(make_trajectory, shapes), shapes), 1000)
    assert micro.lengths == (39, 5, 3, 1, 11)  # a span's last token is not fed
    assert micro.parents == (ALONE, 0, 0, 0, ALONE)
    apart = micro_batches(_batch(make_trajectory, shapes), 1000)
    assert apart[0].lengths == (44, 42, 40, 11)
    assert set(apart[0].parents) == {ALONE}


def test_a_group_that_exceeds_a_pass_feeds_its_prompt_in_each(
    make_trajectory: MakeTrajectory,
) -> None:
    """Each of the two needs 32 + 2 · 8 tokens, and for copies in attention 2 · 32 / 6."""
    shapes = [(33, 8, 0)] * 4
    batch = _with_prompts(_batch(make_trajectory, shapes), shapes)
    assert [m.lengths for m in micro_batches(batch, 60)] == [(32, 8, 8), (32, 8, 8)]
    assert [m.lengths for m in micro_batches(batch, 59)] == [(40,)] * 4
    dealt = balance_ranks(batch, 1000, 2, attention=0.1)
    assert [[m.lengths for m in own] for own in dealt] == [[(32, 8, 8)], [(32, 8, 8)]]


def test_the_longest_fill_first_and_the_short_ones_fill_the_rest(
    make_trajectory: MakeTrajectory,
) -> None:
    shapes = [(size - 1, 2, 3) for size in (4, 9, 5, 2, 6)]  # the span's last token is not fed
    micros = micro_batches(_batch(make_trajectory, shapes), 11)
    assert [micro.lengths for micro in micros] == [(9, 2), (6, 5), (4,)]


def test_ranks_share_the_tokens_evenly_even_of_a_batch_that_fits_one_pass(
    make_trajectory: MakeTrajectory,
) -> None:
    shapes = [(size - 1, 2, 0) for size in (8, 7, 5, 4)]
    dealt = balance_ranks(_batch(make_trajectory, shapes), 1000, 2, attention=0.0)
    assert [[m.lengths for m in each] for each in dealt] == [[(8, 4)], [(7, 5)]]


def test_a_long_trajectory_weighs_its_length_squared_against_short_ones(
    make_trajectory: MakeTrajectory,
) -> None:
    """At attention 1, 8 tokens cost 8 + 64 = 72 and 2 tokens 2 + 4 = 6: eight of them 48."""
    batch = _batch(make_trajectory, [(7, 2, 0)] + [(1, 2, 0)] * 8)
    by_tokens = balance_ranks(batch, 1000, 2, attention=0.0)
    assert [[m.tokens.size for m in each] for each in by_tokens] == [[12], [12]]
    by_cost = balance_ranks(batch, 1000, 2, attention=1.0)
    assert [[m.lengths for m in each] for each in by_cost] == [[(8,)], [(2,) * 8]]


def test_at_each_pass_ranks_have_micro_batches_of_like_cost(
    make_trajectory: MakeTrajectory,
) -> None:
    batch = _batch(make_trajectory, [(size - 1, 2, 0) for size in (9, 8, 5, 4, 3, 2)])
    dealt = balance_ranks(batch, 10, 2, attention=0.5)
    assert [[m.lengths for m in each] for each in dealt] == [[(9,), (4, 3)], [(8,), (5, 2)]]


def test_attention_costs_what_the_model_s_shape_says(tiny: Path) -> None:
    """2 layers of 4 heads of 8; weights below the head, those of the words apart."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny)
    layer = 3 * 32 * 64 + 2 * 32 * 32 + 2 * 32 * 16 + 2 * 32 + 2 * 8
    assert attention_cost(model) == pytest.approx(2 * 32 / (2 * layer + 32))


def test_a_rank_without_work_gets_passes_that_train_nothing(
    make_trajectory: MakeTrajectory,
) -> None:
    one, two, three = balance_ranks(_batch(make_trajectory, [(3, 2, 0)]), 100, 3, 0.1)
    assert [m.lengths for m in one] == [(4,)]
    for (idle,) in (two, three):
        assert (idle.tokens.size, idle.predicts.size, idle.lengths) == (1, 0, (1,))
    assert balance_ranks(_batch(make_trajectory, [(3, 0, 2)]), 100, 2, 0.1) == [[], []]
    assert empty_micro_batch().sources.size == 0


@pytest.mark.parametrize("budget", [1, 4096])
def test_a_batch_without_loss_tokens_has_no_micro_batch(
    make_trajectory: MakeTrajectory, budget: int
) -> None:
    assert micro_batches(_batch(make_trajectory, [(3, 0, 2), (0, 0, 0)]), budget) == []
    assert micro_batches(assemble_batch([], PLAIN), budget) == []


def test_branches_are_packed_as_trajectories_of_their_own(make_trajectory: MakeTrajectory) -> None:
    """The same loss tokens after the same tokens, with the same advantages and shares."""
    whole = make_trajectory([(2, 4), (7, 9)], 10)
    steps = (whole.steps[0], msgspec.structs.replace(whole.steps[1], branch=BranchPoint(begin=5)))
    forked = msgspec.structs.replace(whole, steps=steps)
    other = make_trajectory([(1, 3)], 4, reward=0.0, seed=1)
    batch = assemble_batch([TrainableGroup("g", "db", (forked, other))], PLAIN)
    assert batch.branches.tolist() == [5, 5, 4]
    (micro,) = micro_batches(batch, 100)
    assert sorted(micro.lengths) == [2, 3, 3]
    assert sorted(micro.sources.tolist()) == np.flatnonzero(batch.loss_mask).tolist()
    starts = np.cumsum(micro.lengths) - micro.lengths
    begins = np.array([0, 5, 10])
    for place, source, owner in zip(micro.predicts, micro.sources, micro.owners, strict=True):
        begin = begins[begins <= source].max()
        assert (
            micro.tokens[starts[owner] : place + 1].tolist() == batch.tokens[begin:source].tolist()
        )
    plain = assemble_batch([TrainableGroup("g", "db", (whole, other))], PLAIN)
    assert batch.shares.tolist() == plain.shares.tolist()
    assert batch.advantages.tolist() == plain.advantages.tolist()
