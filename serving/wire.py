"""The subset of OpenAI's `/v1/completions` that we and vLLM support: token ids in and out."""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agentrl.serving.engine_api import Completion, Request, RequestError

MAX_BODY = 4 * 1024 * 1024  # bytes


class CompletionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request. `model`: a checkpoint_id; `user`: the session whose prefix may be reused.

    `return_token_ids` must be true: the server has no tokenizer, so the text is empty.
    """

    model: str
    prompt: list[int]
    return_token_ids: bool = False
    max_tokens: Annotated[int, Meta(ge=1)] = 16
    temperature: Annotated[float, Meta(ge=0.0)] = 1.0
    logprobs: Literal[0, 1] | None = None
    stop_token_ids: list[int] = []
    seed: int | None = None
    user: str = ""
    top_p: Annotated[float, Meta(ge=1.0, le=1.0)] = 1.0
    n: Literal[1] = 1

    def request(self) -> Request:
        return Request(
            policy=self.model,
            prompt=self.prompt,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            stop_ids=frozenset(self.stop_token_ids),
            seed=self.seed,
            session=self.user,
        )


class Logprobs(msgspec.Struct, frozen=True):
    token_logprobs: list[float]
    tokens: list[str]


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error body. `param`: the wrong field. `code`: error code for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


_decoder = msgspec.json.Decoder(CompletionBody)


def decode(content: bytes) -> CompletionBody:
    """Decode a request body. Raises RequestError."""
    try:
        body = _decoder.decode(content)
    except msgspec.ValidationError as error:
        raise RequestError(_field(str(error)), str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("body", f"not JSON: {error}") from error
    if not body.return_token_ids:
        raise RequestError("return_token_ids", "must be true, this server has no tokenizer")
    return body


def encode(number: int, body: CompletionBody, completion: Completion) -> bytes:
    tokens, count = completion.token_ids, len(body.prompt)
    logprobs = None
    if body.logprobs is not None:
        logprobs = Logprobs(completion.logprobs, [f"token_id:{token}" for token in tokens])
    choice = {
        "index": 0,
        "text": "",
        "finish_reason": completion.finish_reason,
        "token_ids": tokens,
        "logprobs": logprobs,
    }
    usage = {
        "prompt_tokens": count,
        "completion_tokens": len(tokens),
        "total_tokens": count + len(tokens),
        "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
    }
    answer = {"id": f"cmpl-{number}", "object": "text_completion", "model": body.model}
    return msgspec.json.encode({**answer, "choices": [choice], "usage": usage})


def _field(message: str) -> str:
    """Return the field in an error of msgspec: `$.prompt[2]`, unknown field `x`, …."""
    match = re.search(r"`\$\.(\w+)", message) or re.search(r"field `([^`]*)`", message)
    return re.sub(r"\W", "_", match[1]) if match else "body"
