"""Requests and answers of vLLM's `/v1/completions`."""

from typing import Any

import msgspec

from agentrl.core.errors import PolicyError
from agentrl.serving.engine_api import Completion, Request

SEEDS = 1 << 63


class _Logprob(msgspec.Struct, frozen=True):
    logprob: float


class _Logprobs(msgspec.Struct, frozen=True):
    token_logprobs: list[float]


class _Choice(msgspec.Struct, frozen=True):
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[str, _Logprob] | None] | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens_details: _PromptDetails | None = None


class CompletionAnswer(msgspec.Struct, frozen=True):
    """The parts of vLLM's answer that we need."""

    choices: list[_Choice]
    usage: _Usage = _Usage()


_decoder = msgspec.json.Decoder(CompletionAnswer)


def request_body(
    request: Request, number: str, model: str, *, seeded: bool = True
) -> dict[str, Any]:
    """Build a request for the unmodified distribution, with every other setting neutral.

    ignore_eos: only the request's own stop tokens end it. number: names it for an abort. seeded:
    whether the request's seed is passed on.
    """
    seed = request.seed if seeded else None
    return {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": sorted(request.stop_ids),
        "ignore_eos": True,
        "seed": None if seed is None else seed % SEEDS,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "request_id": number,
    }


def completion(content: bytes) -> Completion:
    """Parse an answer. Raises PolicyError if it is incomplete."""
    try:
        answer = _decoder.decode(content)
        choice = answer.choices[0]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError) as error:
        raise PolicyError(f"vLLM sent a malformed answer: {error}") from error
    logprobs = choice.logprobs.token_logprobs if choice.logprobs else []
    if choice.finish_reason not in ("stop", "length", "abort"):
        raise PolicyError(f"vLLM: a completion ended with {choice.finish_reason}")
    if len(logprobs) != len(choice.token_ids):
        raise PolicyError("vLLM sent different numbers of token ids and log-probabilities")
    details = answer.usage.prompt_tokens_details
    cached = details.cached_tokens if details else None
    return Completion(choice.token_ids, logprobs, choice.finish_reason, cached or 0)
