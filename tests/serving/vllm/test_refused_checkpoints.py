"""Checkpoints that a policy server on vLLM refuses, and what it serves instead."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_vllm import set_faults
from safetensors.numpy import load_file, save_file
from vllm_bench import VllmBench

from agentrl.core.config.sections.training import Lora
from agentrl.core.errors import CheckpointError, PolicyError
from agentrl.serving.vllm.adapter import write_zero

Start = Callable[..., VllmBench]
Save = Callable[[str], Path]


def test_a_checkpoint_that_contradicts_its_probe_is_refused_and_the_former_serves_again(
    start: Start,
) -> None:
    bench = start()
    bench.serve_next()
    bench.publish(has_wrong_probe=True)
    bench.step_until(lambda: len(bench.rows()) == 2)
    assert bench.serves("c0")
    assert bench.rows() == [("c0", False), ("c0", True)]
    assert bench.answers_from_own_weights("c0")


def test_a_torn_checkpoint_does_not_interrupt_the_former(start: Start) -> None:
    bench = start()
    bench.serve_next()
    bench.publish(is_torn=True)
    for _ in range(3):
        bench.follower.step(bench.live)
        assert bench.served.checkpoints() == ["c0"]
    assert bench.rows() == [("c0", True)]


def test_a_checkpoint_of_another_shape_is_refused(start: Start, tmp_path: Path) -> None:
    bench = start()
    bench.serve_next()
    other = tmp_path / "other"
    shutil.copytree(bench.model, other)
    weights = load_file(other / "model.safetensors")
    save_file(weights | {"model.more": weights["model.norm.weight"]}, other / "model.safetensors")
    bench.publish(model=other)
    bench.step_until(lambda: len(bench.rows()) == 2)
    assert bench.rows() == [("c0", False), ("c0", True)]


def test_a_checkpoint_of_more_than_a_text_model_is_refused_before_vllm_starts(
    start: Start, tmp_path: Path
) -> None:
    bench, other = start(), tmp_path / "other"
    shutil.copytree(bench.model, other)
    described = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({"text_config": described}))
    bench.publish(model=other)
    bench.follower.step(bench.live)
    assert "(text_config of config.json)" in bench.follower.problem()
    assert not list(tmp_path.rglob("vllm-p.log"))


def test_a_base_of_which_vllm_read_other_bytes_serves_no_adapter(start: Start) -> None:
    bench = start(rank=4)
    bench.publish(has_probe=False)
    set_faults(bench.folder, collective_rpc="torn")
    bench.step_until(lambda: "has other bytes for" in bench.follower.problem())
    assert bench.served.checkpoints() == []


def test_an_adapter_of_which_vllm_read_other_bytes_is_refused(start: Start, tmp_path: Path) -> None:
    bench = start(rank=4)
    bench.publish(has_probe=False)
    bench.step_until(lambda: bench.serves("c0"))
    adapter = write_zero(tmp_path / "adapter", bench.folder / "c0", Lora(rank=4))
    set_faults(bench.folder, collective_rpc="torn")
    with pytest.raises(PolicyError, match=r"other bytes for tensor .*lora_A\.weight"):
        bench.engine.load("x", adapter)
    assert bench.engine.names() == ["c0"]
    set_faults(bench.folder)
    bench.engine.load("x", adapter)
    assert bench.engine.names() == ["c0", "x"]


def test_adapters_of_another_base_and_adapters_in_place_are_refused(
    start: Start, tmp_path: Path, save_model: Save
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        f'{{"base_model_name_or_path": "{save_model("b")}"}}'
    )
    bench = start(rank=4)
    bench.publish(has_probe=False)
    bench.step_until(lambda: bench.serves("c0"))
    with pytest.raises(CheckpointError, match="was trained on"):
        bench.engine.load("x", adapter)
    in_place = start()
    with pytest.raises(CheckpointError, match="is an adapter"):
        in_place.engine.load("x", adapter)
