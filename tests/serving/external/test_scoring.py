"""What an API echoes is checked before a token is learned from it."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from echo_endpoint import EchoScript, logprob
from tokenizers import Tokenizer

from agentrl.serving.external.scoring import EchoChoice, TokenTexts, read_scores
from agentrl.serving.external.upstream import RequestRefused

FILE = Path(__file__).parents[3] / "models" / "tiny" / "tokenizer.json"
PROMPT = [300, 12, 45, 2, 700]
Choice = dict[str, Any]


def read(choice: Choice) -> list[float]:
    echoed = msgspec.convert(choice, EchoChoice)
    return read_scores(echoed, PROMPT, TokenTexts(FILE), "gpu:8000").logprobs


def test_the_scores_are_those_of_the_prompt_without_its_first_token() -> None:
    expected = [logprob(*pair) for pair in pairwise(PROMPT)]
    choice = EchoScript(FILE).choice(PROMPT)
    assert read(choice) == expected
    for values in choice["logprobs"].values():
        values.pop()  # an API that samples nothing
    del choice["prompt_token_ids"]
    assert read(choice) == expected


def _drop_all(choice: Choice) -> None:
    choice["logprobs"] = None


def _drop_two(choice: Choice) -> None:
    for values in choice["logprobs"].values():
        del values[-2:]


def _drop_one_text(choice: Choice) -> None:
    choice["logprobs"]["tokens"].pop()


def _change_text(choice: Choice) -> None:
    choice["logprobs"]["tokens"][3] = "other"


def _change_id(choice: Choice) -> None:
    choice["prompt_token_ids"] = [*PROMPT[:-1], 701]


def _raise_above_0(choice: Choice) -> None:
    choice["logprobs"]["token_logprobs"][2] = 0.5


def _drop_a_value(choice: Choice) -> None:
    choice["logprobs"]["token_logprobs"][2] = None


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_drop_all, "it returned no log-probabilities of the prompt; serve it with vLLM or SGLang"),
        (_drop_two, "it returned 4 log-probabilities of 4 tokens for 5 tokens; serve it with"),
        (_drop_one_text, "it returned 6 log-probabilities of 5 tokens for 5 tokens; serve it with"),
        (_change_text, "token 3, 2, is 'other' there and .* in model.path; serve a model with the"),
        (_change_id, "it scored other token ids than those it was given; serve a model with"),
        (
            _raise_above_0,
            "it returned log-probabilities above 0, or none for some tokens; serve it with",
        ),
        (
            _drop_a_value,
            "it returned log-probabilities above 0, or none for some tokens; serve it with",
        ),
    ],
)
def test_an_answer_that_is_no_score_of_our_tokens_is_refused_with_the_host_and_a_remedy(
    spoil: Callable[[Choice], None], why: str
) -> None:
    choice = EchoScript(FILE).choice(PROMPT)
    spoil(choice)
    with pytest.raises(RequestRefused, match=f"^external model at gpu:8000: {why}"):
        read(choice)


def test_a_token_has_the_texts_that_apis_give_it_and_no_other() -> None:
    texts, tokenizer = TokenTexts(FILE), Tokenizer.from_file(str(FILE))
    for token in range(tokenizer.get_vocab_size()):
        decoded, piece = texts.show(token), tokenizer.id_to_token(token) or ""
        for text in (decoded, piece, decoded.strip(), f"token_id:{token}", ""):
            assert texts.is_text_of(text, token), (token, text)
        assert texts.is_text_of("another", token) == ("\N{REPLACEMENT CHARACTER}" in decoded)
    word = next(t for t in range(300, 768) if re.fullmatch(r"\s*[a-z]+", texts.show(t)))
    assert not texts.is_text_of(f"token_id:{word + 1}", word)
