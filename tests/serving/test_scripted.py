"""The scripted engine."""

import math
from pathlib import Path

import pytest

from agentrl.core.errors import PolicyError
from agentrl.serving.engine_api import Request
from agentrl.serving.scripted import ScriptedEngine


def test_the_same_request_and_seed_give_the_same_tokens() -> None:
    answers = []
    for _ in range(2):
        engine = ScriptedEngine(seed=3)
        engine.load("c", Path())
        request = Request("c", [1, 2], 50, stop_ids=frozenset({7}))
        answers.append(engine.submit(request).result())
    assert answers[0] == answers[1]
    assert answers[0].token_ids[-1] == 7
    assert answers[0].finish_reason == "stop"
    assert answers[0].logprobs == [-math.log(768)] * len(answers[0].token_ids)


def test_a_script_is_cut_at_the_stop_token_and_at_max_tokens() -> None:
    engine = ScriptedEngine(lambda request: [5, 6, *request.prompt, 7, 8])
    engine.load("c", Path())
    stopped = engine.submit(Request("c", [9], 10, stop_ids=frozenset({7}))).result()
    assert (stopped.token_ids, stopped.finish_reason) == ([5, 6, 9, 7], "stop")
    short = engine.submit(Request("c", [9], 2, stop_ids=frozenset({7}))).result()
    assert (short.token_ids, short.finish_reason) == ([5, 6], "length")


def test_a_policy_that_is_not_loaded_is_refused() -> None:
    engine = ScriptedEngine()
    with pytest.raises(PolicyError, match="policy c is not loaded"):
        engine.submit(Request("c", [1], 1))
    engine.load("c", Path())
    assert engine.names() == ["c"]
    engine.unload("c")
    assert engine.names() == []
