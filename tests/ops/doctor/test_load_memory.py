"""What reading a model takes beside what is planned to stay, worked out by hand."""

import json
from pathlib import Path

import pytest
from memory_plans import config, plan_memory, sizes
from small_model import PARAMETERS, SMALL, small_model

from agentrl.ops.doctor.memory_items import CONTEXT, TORCH


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return small_model(tmp_path)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_reading_weights_takes_a_tensor_on_a_cpu_and_all_of_them_before_a_card(
    small: Path, dtype: str
) -> None:
    width, text = 2 if dtype == "bfloat16" else 4, f'model.dtype = "{dtype}"\n'
    (host,) = plan_memory(config(small, text))
    largest = width * SMALL["vocab_size"] * SMALL["hidden_size"]
    assert sizes(host, "policy policy")["weights while read"] == largest
    card, host = plan_memory(config(small, f'{text}model.device = "cuda"\n'))
    assert sizes(card, "policy policy")["weights while read"] == 0
    held = sizes(host, "policy policy")["torch, CUDA, weights while read"]
    assert held == TORCH + CONTEXT + width * PARAMETERS


def test_reading_a_layers_experts_takes_them_twice_more(tmp_path: Path) -> None:
    kind = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2}
    shape = SMALL | kind | {"moe_intermediate_size": 16}
    path = small_model(tmp_path)
    (path / "config.json").write_text(json.dumps(shape))
    (host,) = plan_memory(config(path, 'model.dtype = "bfloat16"\n'))
    layer = 4 * 3 * 16 * SMALL["hidden_size"]
    assert layer > SMALL["vocab_size"] * SMALL["hidden_size"]
    assert sizes(host, "policy policy")["weights while read"] == 2 * 2 * layer


def test_rank_0_of_a_cpu_reads_the_whole_base_beside_its_shard(small: Path) -> None:
    """Of an adapter, whose snapshot is smaller than the base."""
    text = 'trainer.engine = "deepspeed"\ntrainer.ranks = 2\ntrainer.lora.rank = 1\n'
    text += 'trainer.lora.targets = ["q_proj"]\n'
    adapter = 2 * (8 + 8)
    (plan,) = plan_memory(config(small, f"{text}trainer.deepspeed.zero = 3\n"))
    first, second = (sizes(plan, f"trainer rank {rank}") for rank in range(2))
    assert first["weights while read, or snapshot"] == 4 * PARAMETERS + 4 * adapter
    assert first["weights"] == second["weights"] == -(-(4 * PARAMETERS + 4 * adapter) // 2)
    assert "weights while read, or snapshot" not in second
    (plan,) = plan_memory(config(small, f"{text}trainer.deepspeed.zero = 2\n"))
    assert sizes(plan, "trainer rank 0")["snapshot"] == 12 * adapter
