"""What vLLM is asked for one completion."""

import json
import threading
from contextlib import closing
from typing import Any

import pytest

from agentrl.serving.engine_api import Request
from agentrl.serving.vllm.client import VllmClient
from agentrl.serving.vllm.completions import RunningCompletions

ANSWER = {
    "choices": [
        {"token_ids": [3], "finish_reason": "length", "logprobs": {"token_logprobs": [-0.5]}}
    ]
}


class Recording(VllmClient):
    """Answers every completion with one token."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def post(self, target: str, body: Any, timeout_s: float) -> bytes:
        assert target == "/v1/completions"
        assert timeout_s > 0
        self.asked.append(body)
        return json.dumps(ANSWER).encode()


@pytest.mark.parametrize(("seeded", "seed"), [(True, 5), (False, None)])
def test_a_seed_is_passed_on_only_where_vllm_survives_it(seeded: bool, seed: int | None) -> None:
    line = Recording()
    with closing(RunningCompletions(lambda _: line, 1, timeout_s=60.0, seeded=seeded)) as answers:
        request = Request("p", [1, 2], 1, seed=5)
        assert answers.submit(request, "base").result(60).token_ids == [3]
        answers.abort("p", threading.Event())  # nothing is under way any more
    assert [body["seed"] for body in line.asked] == [seed]
