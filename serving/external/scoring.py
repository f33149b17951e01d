"""Scores given tokens with an external model, whose API echoes them with their log-probabilities.

    tokens ─▶ /completions, echo ─▶ as many? of the same tokens? ─▶ log-probabilities

vLLM and SGLang answer so. They sample at least one more token, which is left out.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from agentrl.core.errors import ConfigError
from agentrl.serving.external.answers import usable_logprobs
from agentrl.serving.external.upstream import RequestRefused

UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # stands for a part of a character
ECHO = "serve it with vLLM or SGLang, whose /completions score a prompt that they echo"
SAME = "serve a model with the tokenizer of model.path"


class ScoreBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for the log-probabilities of tokens. `model`: id of the external checkpoint."""

    model: str
    tokens: Annotated[list[int], Meta(min_length=2)]


class ScoredTokens(msgspec.Struct, frozen=True):
    """Natural log-probabilities, one fewer than the tokens: nothing predicts the first."""

    logprobs: list[float]


class _Echo(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]


class EchoChoice(msgspec.Struct, frozen=True):
    """The choice of an API that echoes the prompt. vLLM repeats the ids, too."""

    logprobs: _Echo | None = None
    prompt_token_ids: list[int] | None = None


class TokenTexts:
    """The texts of the policy's tokens."""

    def __init__(self, tokenizer: Path) -> None:
        """`tokenizer`: tokenizer.json, which is read at first use."""
        self._path = tokenizer
        self._texts = lru_cache(None)(self._find_texts)

    def is_text_of(self, text: str, token: int) -> bool:
        """Return whether an API may give a token this text.

        Spaces do not count, and neither do texts of special tokens that the API hides, nor parts of
        characters. Some APIs give the piece of the vocabulary, or the id. Raises ConfigError.
        """
        found = _without_spaces(text)
        return not found or UNKNOWN in found or not self._texts(token).isdisjoint((found, UNKNOWN))

    def show(self, token: int) -> str:
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def _find_texts(self, token: int) -> frozenset[str]:
        decoded = _without_spaces(self.show(token))
        piece = self._tokenizer.id_to_token(token) or ""
        texts = (decoded, _without_spaces(piece), f"token_id:{token}")
        return frozenset(UNKNOWN if UNKNOWN in text else text for text in texts)

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_file(str(self._path))
        except Exception as error:  # tokenizers raises nothing narrower
            raise ConfigError(f"{self._path}: cannot be read: {error}") from error


def score_fields(tokens: Sequence[int]) -> Mapping[str, Any]:
    """Return the fields of a request that scores tokens."""
    return {
        "prompt": tokens,
        "echo": True,
        "max_tokens": 1,  # some APIs refuse 0
        "logprobs": 1,  # SGLang echoes none for 0
        "temperature": 1.0,
        "return_token_ids": True,
    }


def read_scores(
    choice: EchoChoice, tokens: Sequence[int], texts: TokenTexts, host: str
) -> ScoredTokens:
    """Return the scores of tokens. `host`: of the API, for errors.

    Raises RequestRefused for another number of scores, or another tokenizer.
    """
    count, echo = len(tokens), choice.logprobs
    if echo is None:
        raise _refuse(host, "it returned no log-probabilities of the prompt", ECHO)
    if len(echo.tokens) != len(echo.token_logprobs) or len(echo.tokens) - count not in (0, 1):
        numbers = f"{len(echo.token_logprobs)} log-probabilities of {len(echo.tokens)} tokens"
        raise _refuse(host, f"it returned {numbers} for {count} tokens", ECHO)
    if choice.prompt_token_ids not in (None, list(tokens)):
        raise _refuse(host, "it scored other token ids than those it was given", SAME)
    for place, (token, text) in enumerate(zip(tokens, echo.tokens[:count], strict=True)):
        if not texts.is_text_of(text, token):
            own = f"{text!r} there and {texts.show(token)!r} in model.path"
            raise _refuse(host, f"token {place}, {token}, is {own}", SAME)
    found = usable_logprobs({"token_logprobs": echo.token_logprobs[1:count]}, count - 1)
    if found is None:
        raise _refuse(host, "it returned log-probabilities above 0, or none for some tokens", ECHO)
    return ScoredTokens(found)


def _refuse(host: str, what: str, remedy: str) -> RequestRefused:
    return RequestRefused(f"external model at {host}: {what}; {remedy}")


def _without_spaces(text: str) -> str:
    return "".join(text.split())
