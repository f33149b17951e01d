from itertools import islice
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_device import DEVICE

from agentrl.core.errors import CheckpointError
from agentrl.trainer.model.cloning import (
    Cloner,
    Demonstration,
    batches,
    learns_by_muon,
    new_model,
)
from agentrl.trainer.snapshots.snapshots import State

SHAPE = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}


def demonstration(tokens: list[int], mask: list[int]) -> Demonstration:
    return Demonstration(np.array(tokens, np.int32), np.array(mask, np.uint8))


def student(seed: int, **shape: int) -> Any:
    return new_model(SHAPE | shape, seed).to(DEVICE)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=60), st.integers(1, 400), st.integers())
def test_batches_hold_every_episode_once_and_stay_within_their_tokens(
    lengths: list[int], tokens: int, seed: int
) -> None:
    every = [demonstration([n] * length, [1] * length) for n, length in enumerate(lengths)]
    seen: list[int] = []
    for batch in batches(every, tokens, Random(seed)):
        longest = max(len(each.mask) for each in batch)
        assert longest * len(batch) <= tokens or len(batch) == 1
        seen += [int(each.token_ids[0]) for each in batch]
        if len(seen) >= len(every):
            break
    assert sorted(seen) == list(range(len(every)))


def test_batches_are_the_same_for_the_same_seed() -> None:
    every = [demonstration([n] * (n + 1), [1] * (n + 1)) for n in range(30)]
    runs = [list(islice(batches(every, 64, Random(3)), 40)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_no_demonstration_is_an_error_not_a_hang() -> None:
    with pytest.raises(ValueError, match="no demonstration"):
        next(batches([], 64, Random(0)))


def test_the_loss_is_the_mean_over_learned_tokens_alone() -> None:
    lessons = [demonstration([1, 2, 3, 4, 5], [0, 1, 0, 0, 1]), demonstration([6, 7], [1, 1])]
    model = student(1)
    expected = []
    for tokens, position in (([1, 2, 3, 4, 5], 1), ([1, 2, 3, 4, 5], 4), ([6, 7], 1)):
        logits = model(torch.tensor([tokens], device=DEVICE)).logits[0, position - 1]
        expected.append(-torch.log_softmax(logits, -1)[tokens[position]].item())
    loss = Cloner(model, 3e-3, steps=1).step(lessons)
    assert loss == pytest.approx(sum(expected) / 3, abs=1e-5)


def test_the_head_computes_no_more_logits_at_once_than_configured() -> None:
    lessons = [demonstration([1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 1, 1, 1, 1])]
    rows: dict[int | None, set[int]] = {}
    losses = []
    for chunk_logits in (None, 2 * SHAPE["vocab_size"]):
        found = rows[chunk_logits] = set()
        model = student(0)
        model.get_output_embeddings().register_forward_hook(
            lambda _module, inputs, _logits, found=found: found.add(len(inputs[0]))
        )
        losses.append(Cloner(model, 0.01, steps=1, chunk_logits=chunk_logits).step(lessons))
    assert rows == {None: {5}, 2 * SHAPE["vocab_size"]: {1, 2}}
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_a_cloner_goes_on_bit_by_bit_from_its_state() -> None:
    lessons = [demonstration([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1])]
    whole = Cloner(student(0), 0.01, steps=6)
    for _ in range(3):
        whole.step(lessons)
    kept = whole.state()
    kept = State({name: each.clone() for name, each in kept.tensors.items()}, dict(kept.values))
    expected = [whole.step(lessons) for _ in range(3)]
    again = Cloner(student(1), 0.01, steps=6)
    again.load_state(kept)
    assert [again.step(lessons) for _ in range(3)] == expected
    weights = zip(whole.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)


def test_a_state_of_other_optimizers_is_refused() -> None:
    cloner = Cloner(student(0), 0.01, steps=1)
    tensors = cloner.state().tensors | {"optimizer/2/0/step": torch.zeros(())}
    with pytest.raises(CheckpointError, match="other optimizers"):
        cloner.load_state(State(tensors, {"done": 0}))


def test_a_state_of_another_model_is_refused() -> None:
    kept = Cloner(student(0, hidden_size=16), 0.01, steps=1).state()
    with pytest.raises(CheckpointError, match="the model has no weight"):
        Cloner(student(0), 0.01, steps=1).load_state(kept)


def test_products_in_bfloat16_keep_float32_weights_and_lose_a_little() -> None:
    lessons = [demonstration([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1])]
    exact = Cloner(student(0), 0.01, steps=1).step(lessons)
    low = Cloner(student(0), 0.01, steps=1, dtype="bfloat16")
    loss = low.step(lessons)
    assert loss != exact
    assert loss == pytest.approx(exact, rel=2e-2)
    assert {weight.dtype for weight in low.model.parameters()} == {torch.float32}


def test_a_model_learns_what_it_is_shown_and_nothing_else() -> None:
    lessons = [demonstration([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1])]
    cloner = Cloner(student(0), 0.01, steps=50)
    losses = [cloner.step(lessons) for _ in range(50)]
    assert losses[0] == pytest.approx(np.log(32), abs=0.3)
    assert losses[-1] < 0.1
    with torch.no_grad():
        logits = cloner.model(torch.tensor([[1, 2, 3]], device=DEVICE)).logits[0]
    assert int(logits[-1].argmax()) == 4
    assert torch.log_softmax(logits[0], -1)[2] < -0.5


def test_the_learning_rate_rises_over_the_first_steps_and_falls_to_a_tenth() -> None:
    lessons = [demonstration([1, 2, 3], [0, 1, 1])]
    cloner = Cloner(student(0), 0.5, steps=200)
    rates = []
    for _ in range(200):
        cloner.step(lessons)
        rates.append([optimizer.param_groups[0]["lr"] for optimizer, _ in cloner._optimizers])
    muon, adamw = zip(*rates, strict=True)
    assert adamw[0] == pytest.approx(0.5 / 21)
    assert adamw[9] == pytest.approx(0.5 * 10 / 21)
    assert adamw[100] == pytest.approx(0.5 * (1 - 0.9 / 2))
    assert adamw[199] == pytest.approx(0.5 * (1 - 0.9 * 199 / 200))
    assert list(muon) == pytest.approx([6 * rate for rate in adamw])


def test_new_models_are_equal_for_the_same_seed() -> None:
    first, same, other = (new_model(SHAPE, seed).state_dict() for seed in (4, 4, 5))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(("width", "by_muon"), [(1000, True), (5000, False)])
def test_only_small_models_learn_by_muon(width: int, by_muon: bool) -> None:
    assert learns_by_muon(torch.nn.Linear(width, width, device="meta")) is by_muon
