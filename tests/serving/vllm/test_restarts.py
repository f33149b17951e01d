"""A vLLM that is killed, hangs or never starts, under the engine and its follower."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_vllm import set_faults
from vllm_bench import VllmBench

from agentrl.core.errors import PolicyError
from agentrl.serving.engine_api import EngineAway

Start = Callable[..., VllmBench]


@pytest.mark.parametrize("rank", [0, 4])
def test_a_killed_vllm_is_launched_again_and_serves_the_same_checkpoint(
    start: Start, rank: int
) -> None:
    bench = start(rank=rank)
    bench.publish(has_probe=not rank)
    bench.step_until(lambda: bench.serves("c0"))
    long = bench.ask("c0", 900)
    bench.await_tokens()
    set_faults(bench.folder, start="hang")
    os.kill(bench.vllm_pid(), signal.SIGKILL)
    with pytest.raises(PolicyError):
        long.result(60)
    bench.step_until(lambda: bench.served.checkpoints() == [])
    assert bench.rows() == [("c0", False)]
    with pytest.raises(EngineAway):
        bench.ask("c0").result(60)
    bench.step_until(lambda: bench.engine.problem() != "")
    assert bench.engine.problem().startswith("vLLM is down: vLLM")
    set_faults(bench.folder)
    bench.step_until(lambda: bench.serves("c0"))
    assert bench.engine.problem() == ""
    assert bench.ask("c0").result(60).finish_reason == "length"
    assert len(bench.launches()) == 2


def test_a_stopped_vllm_is_launched_again(start: Start) -> None:
    bench = start(call_s=5.0)  # the call to the stopped process lasts that long
    bench.serve_next()
    set_faults(bench.folder, start="hang")
    os.kill(bench.vllm_pid(), signal.SIGSTOP)
    bench.step_until(lambda: bench.served.checkpoints() == [])
    set_faults(bench.folder)
    bench.step_until(lambda: bench.serves("c0"))
    assert len(bench.launches()) == 2


def test_an_engine_whose_vllm_never_starts_is_dead(start: Start) -> None:
    bench = start()
    set_faults(bench.folder, start=1)
    bench.publish()
    bench.step_until(lambda: not bench.engine.alive())


def test_an_engine_whose_vllm_cannot_be_launched_is_dead(start: Start, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "logs").touch()  # where the folder of its log should be
    bench = start()
    bench.publish()
    bench.step_until(lambda: not bench.engine.alive())
