"""Weights exchanged in place: what happens to running requests, and to an exchange that fails."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fake_vllm import set_faults
from vllm_bench import VllmBench

from agentrl.serving.engine_api import Completion, EngineAway
from agentrl.serving.vllm.calls import SLOWEST

Start = Callable[..., VllmBench]
SHORT_S = 5.0  # of a call that is to hang; others last that long on no machine


def test_weights_are_exchanged_in_place(start: Start) -> None:
    bench = start()
    bench.serve_next()
    first = bench.ask("c0").result(60).logprobs
    bench.serve_next()
    assert bench.answers_from_own_weights("c1")
    assert bench.ask("c1").result(60).logprobs != first
    assert bench.rows() == [("c0", False), ("c1", True)]
    assert len(bench.launches()) == 1


def test_the_time_limit_of_an_exchange_grows_with_the_bytes_of_the_weights(start: Start) -> None:
    bench = start(call_s=20.0)
    bench.serve_next()
    bench.serve_next()  # the first exchange has the time limit of the start
    size = (bench.folder / "c1" / "model.safetensors").stat().st_size
    rpc = json.loads((bench.folder / "rpc.json").read_text())
    assert rpc["timeout"] == 20.0 + size / SLOWEST


def test_an_exchange_waits_for_requests_and_refuses_new_ones_meanwhile(start: Start) -> None:
    bench = start(drain_s=20.0)
    bench.serve_next()
    with bench.served.request("c0"):
        long = bench.ask("c0", 60)
        bench.publish()
        bench.follower.step(bench.live)
        assert bench.served.checkpoints() == []
        assert bench.rows() == [("c0", True)]
        assert long.result(60).finish_reason == "length"
    bench.step_until(lambda: bench.serves("c1"))


def test_a_request_that_outlasts_the_drain_returns_the_tokens_sampled_so_far(start: Start) -> None:
    bench = start(drain_s=0.2)
    bench.serve_next()
    set_faults(bench.folder, token_s=0.2)  # so that it would last 180 s
    answers: list[Completion] = []

    def ask() -> None:
        with bench.served.request("c0"):
            answers.append(bench.ask("c0", 900).result(60))

    thread = threading.Thread(target=ask)
    thread.start()
    bench.await_tokens()
    bench.serve_next()
    thread.join(60)
    assert answers[0].finish_reason == "abort"
    assert 0 < len(answers[0].token_ids) == len(answers[0].logprobs) < 900
    assert bench.rows() == [("c0", False), ("c1", True)]


def test_a_request_that_could_not_be_aborted_before_an_exchange_fails(start: Start) -> None:
    """It may go on with the new weights: nobody could tell which of them sampled a token."""
    bench = start(drain_s=0.1)
    bench.serve_next()
    set_faults(bench.folder, token_s=0.1, abort_requests=500)
    long = bench.ask("c0", 900)
    bench.await_tokens()
    bench.serve_next()
    assert not long.done()
    set_faults(bench.folder)
    numbers = [f"cmpl-{number}-0" for number in range(9)]
    bench.engine.line("c1").post("/abort_requests", {"request_ids": numbers}, 20.0)
    with pytest.raises(EngineAway, match="does not hold policy c0"):
        long.result(60)


@pytest.mark.parametrize("call", ["pause", "collective_rpc", "reset_prefix_cache", "resume"])
@pytest.mark.parametrize("fault", [500, "hang"])
def test_a_call_that_fails_or_hangs_leaves_the_former_weights(
    start: Start, call: str, fault: object
) -> None:
    bench = start(call_s=SHORT_S if fault == "hang" else 20.0)
    bench.serve_next()
    bench.publish()
    set_faults(bench.folder, **{call: fault})
    bench.follower.step(bench.live)
    set_faults(bench.folder)
    bench.step_until(lambda: bench.serves("c0"))
    assert bench.answers_from_own_weights("c0")
    assert bench.rows()[-1] == ("c0", True)
    assert bench.serve_next() == "c2"


@pytest.mark.parametrize("call", ["collective_rpc", "resume"])
def test_after_one_failed_call_the_former_weights_are_put_back_without_a_restart(
    start: Start, call: str
) -> None:
    bench = start()
    bench.serve_next()
    bench.publish()
    set_faults(bench.folder, **{call: "once"})
    bench.follower.step(bench.live)
    bench.step_until(lambda: bench.serves("c0"))
    assert bench.answers_from_own_weights("c0")
    assert bench.rows() == [("c0", False), ("c0", True)]
    assert bench.launches() == [str(bench.folder / "c0")]


@pytest.mark.parametrize(
    "faults",
    [
        {"collective_rpc": "wrong", "resume": 500},
        {"collective_rpc": "torn"},
        {"collective_rpc": "die"},
    ],
    ids=["vLLM does not resume", "vLLM reads other bytes", "vLLM ends"],
)
def test_vllm_is_launched_again_when_the_former_weights_cannot_be_put_back(
    start: Start, faults: dict[str, Any]
) -> None:
    bench = start()
    bench.serve_next()
    bench.ask("c0").result(60)
    bench.publish()
    set_faults(bench.folder, **faults)
    bench.follower.step(bench.live)
    set_faults(bench.folder)
    bench.step_until(lambda: bench.serves("c0"))
    assert bench.launches() == [str(bench.folder / "c0")] * 2
    assert {name for name, _ in bench.rows()} == {"c0"}
