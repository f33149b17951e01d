"""An API that scores prompts of token ids as vLLM does: with `echo`, and one more token."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from openai_endpoint import Answer
from tokenizers import Tokenizer


def logprob(before: int, token: int) -> float:
    """Return the log-probability that the model behind the API gives a token after another."""
    return -((7 * before + 3 * token) % 11) / 4 - 0.125


class EchoScript:
    """The script of an `openai_endpoint.Endpoint`. `tokenizer`: of the model behind the API."""

    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer))

    def __call__(self, body: dict[str, Any]) -> Answer:
        assert (body["echo"], body["max_tokens"], body["logprobs"]) == (True, 1, 1)
        return {"choices": [self.choice(body["prompt"])], "usage": {"total_tokens": 7}}

    def choice(self, prompt: list[int]) -> dict[str, Any]:
        tokens = [*prompt, 5]
        scores = [logprob(before, token) for before, token in pairwise(tokens)]
        texts = [self._tokenizer.decode([each], skip_special_tokens=False) for each in tokens]
        logprobs = {"tokens": texts, "token_logprobs": [None, *scores]}
        return {"logprobs": logprobs, "prompt_token_ids": prompt, "text": "", "index": 0}
