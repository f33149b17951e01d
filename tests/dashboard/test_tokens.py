"""Tokens with their colours and words; HTML in which nothing of an episode is markup."""

import numpy as np
import pytest
from trajectories import trajectory

from agentrl.dashboard import markup
from agentrl.dashboard.markup import Link, Token
from agentrl.dashboard.viewmodels import tokens
from agentrl.dashboard.vocabulary import NONE, Vocabulary

WORDS = Vocabulary({number: f"w{number} ".encode() for number in range(99)}, frozenset({17}))


def test_a_step_shows_what_came_before_it_and_what_it_sampled() -> None:
    shown = tokens.token_view(trajectory(), WORDS, 0.5)  # spans 5–8 and 12–18 of 18 tokens
    assert [token.text for token in shown.observation_tokens(0)] == [f"w{n} " for n in range(5)]
    assert [token.text for token in shown.step_tokens(0, "policy")] == ["w5 ", "w6 ", "w7 "]
    assert [token.text for token in shown.observation_tokens(1)] == [f"w{n} " for n in range(8, 12)]
    assert shown.observation_tokens(2) == []
    assert [token.special for token in shown.step_tokens(1, "policy")] == [False] * 5 + [True]


def test_hovering_tells_number_policy_probability_and_advantage() -> None:
    first = tokens.token_view(trajectory(), NONE, -0.25).step_tokens(0, "probability")[0]
    assert first.text == "⟨5⟩"
    assert first.title == (
        f"token 5 · v0 current · probability {np.exp(-5 / 7):.3f} · advantage -0.250"
    )


def test_tokens_outside_the_loss_have_no_probability() -> None:
    body = trajectory()
    masked = type(body)(
        **{
            name: getattr(body, name)
            for name in body.__struct_fields__
            if name not in ("loss_mask", "logprobs")
        },
        loss_mask=bytes(18),
        logprobs=bytes(4 * 18),
    )
    first = tokens.token_view(masked, NONE, 1.0).step_tokens(0, "probability")[0]
    assert first.colour == ""
    assert "not in the loss" in first.title
    assert tokens.token_view(masked, NONE, 1.0).step_tokens(0, "advantage")[0].colour == ""


def test_colours_grow_with_what_they_tell() -> None:
    def strength(colour: str) -> float:
        return float(colour.rpartition(" ")[2].rstrip(")")) if colour else 0.0

    chances = [strength(tokens.chance_text(chance)) for chance in (1.0, 0.9, 0.5, 0.0)]
    assert chances == sorted(chances)
    assert chances[0] == 0.0
    assert tokens.advantage_text(1.0).startswith("rgba(0, 114, 178")
    assert tokens.advantage_text(-1.0).startswith("rgba(213, 94, 0")
    assert strength(tokens.advantage_text(9.0)) == tokens.STRONGEST
    assert tokens.advantage_text(0.0) == ""


@pytest.mark.parametrize("mode", tokens.MODES)
def test_every_mode_has_a_legend_of_the_colours_it_uses(mode: str) -> None:
    body = trajectory()
    legend = tokens.legend(mode, body)
    assert len(legend) >= 2
    assert all(colour.startswith("rgba(") for colour in legend.values())
    if mode == "policy":
        used = {
            token.colour
            for step in (0, 1)
            for token in tokens.token_view(body, NONE, 1.0).step_tokens(step, mode)
        }
        assert used == set(legend.values())


def test_nothing_of_an_episode_is_markup() -> None:
    evil = "<script>alert(1)</script>\"'&"
    page = markup.tokens([Token(evil, title=evil, colour=evil)])
    page += markup.table([{evil: evil, "link": Link(evil, f"/x?{evil}")}])
    page += markup.links([Link(evil, evil)]) + markup.legend({evil: evil})
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8
    assert 'href="/x?&lt;script' in page


def test_a_table_marks_numbers_missing_values_and_where_one_is() -> None:
    page = markup.table([{"a": 1.23456, "b": None}, {"a": 2, "b": "x"}], here=1)
    assert '<td class="number">1.235</td><td>–</td>' in page
    assert '<tr class="here"><td class="number">2</td>' in page
    assert markup.table([]).endswith("<tr></tr></thead><tbody></tbody></table></div>")
