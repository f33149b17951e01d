"""Sentence BLEU with method 4, on numbers worked out by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.tasks.alfworld.nearest_action import bleu, nearest_action


def test_a_perfect_candidate_of_four_words_scores_one() -> None:
    words = ["go", "to", "fridge", "1"]
    assert bleu(words, words) == pytest.approx(1.0)


def test_partial_overlap_is_smoothed_as_worked_out_by_hand() -> None:
    # matches 3/4, 2/3, 1/2 and none of one 4-gram: log(4) / (5 · 2) of it
    expected = (3 / 4 * 2 / 3 * 1 / 2 * math.log(4) / 10) ** (1 / 4)
    assert bleu(["go", "to", "fridge", "1"], ["go", "to", "fridge", "2"]) == pytest.approx(expected)


def test_a_single_word_pays_the_brevity_penalty_alone() -> None:
    assert bleu(["go", "to", "fridge", "1"], ["go"]) == pytest.approx(math.exp(1 - 4 / 1))


def test_without_a_common_word_the_score_is_zero() -> None:
    assert bleu(["look"], ["fly"]) == 0.0
    assert bleu(["look"], []) == 0.0


ACTIONS = ["go to fridge", "open fridge", "take mug from desk", "look"]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("open fridge", "open fridge"),
        ("open the fridge", "open fridge"),
        ("take mug", "take mug from desk"),
        ("dance", None),
        ("", None),
    ],
)
def test_the_nearest_action_is_taken_or_none(text: str, action: str | None) -> None:
    assert nearest_action(text, ACTIONS) == action


def test_nothing_is_near_where_nothing_can_be_done() -> None:
    assert nearest_action("look", []) is None


words = st.lists(st.sampled_from(["go", "to", "open", "fridge", "desk", "a", "b"]), max_size=8)


@settings(deadline=None)
@given(words, words)
def test_bleu_stays_between_zero_and_one(reference: list[str], candidate: list[str]) -> None:
    assert 0.0 <= bleu(reference, candidate) <= 1.0 + 1e-9
