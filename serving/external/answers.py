"""Reads what an external API answers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from agentrl.serving.external.upstream import RequestRefused

T = TypeVar("T")


def first_choice(answer: Mapping[str, Any], kind: type[T]) -> T:
    """Return the first choice. Raises RequestRefused."""
    try:
        return msgspec.convert(answer["choices"][0], kind)
    except (msgspec.ValidationError, KeyError, IndexError, TypeError) as error:
        raise RequestRefused(f"external model: malformed answer: {type(error).__name__}") from error


def usable_logprobs(field: Any, count: int) -> list[float] | None:
    """Return usable log-probabilities (one per token, finite, at most 0), or None."""
    logprobs = field.get("token_logprobs") if isinstance(field, Mapping) else None
    if not isinstance(logprobs, Sequence) or len(logprobs) != count:
        return None
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in logprobs):
        return None
    return (
        [float(x) for x in logprobs] if all(math.isfinite(x) and x <= 0 for x in logprobs) else None
    )
