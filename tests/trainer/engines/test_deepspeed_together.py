"""What may be asked of DeepSpeed at once, on two ranks: adapters, bfloat16, layers computed again,
other architectures. Each against torch's engine, asked for the same.
"""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import rank_processes
import torch
import transformers
from backends import NEEDS_DEEPSPEED
from engine_updates import (
    BASE,
    LORA,
    MakeTrajectory,
    deepspeed_trainer,
    flatten,
    ragged_batch,
    relative_distance,
    update_on_torch,
)

from agentrl.core.config.sections.training import Trainer
from agentrl.trainer.batch import Batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), NEEDS_DEEPSPEED]

GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
LLAMA = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
MODELS: dict[str, Any] = {
    "gpt2": transformers.GPT2Config(**GPT2, **ENDS),
    "llama, head and words apart": transformers.LlamaConfig(
        **LLAMA, **HEADS, **ENDS, tie_word_embeddings=False, attention_bias=True, mlp_bias=True
    ),
}
# Relative distance of two updates. In bfloat16 each micro-batch's gradient is rounded, and ranks
# pack the batch differently from torch: 0.012.
NEAR = {"float32": 1e-4, "bfloat16": 0.02}


class Asked(NamedTuple):
    trainer: Trainer
    dtype: str = "float32"
    model: str = ""


def _asked() -> dict[str, Asked]:
    """With every sharding: an adapter, bfloat16 and layers computed again, two and three at once.

    bfloat16 and gpt2, whose keys' biases change nothing, step by the gradient itself: Adam's first
    step magnifies rounding where that is ~0.
    """
    found = {}
    plain = msgspec.structs.replace(BASE, optimizer="sgd", learning_rate=0.1, weight_decay=0.0)
    for stage in (0, 1, 2, 3):
        low = deepspeed_trainer(plain, stage, gradient_checkpointing=True)
        adapter = deepspeed_trainer(BASE, stage, gradient_checkpointing=True, lora=LORA)
        found[f"zero{stage} again, bfloat16"] = Asked(low, "bfloat16")
        found[f"zero{stage} again, adapter"] = Asked(adapter)
        both = msgspec.structs.replace(low, lora=LORA)
        found[f"zero{stage} again, adapter, bfloat16"] = Asked(both, "bfloat16")
    for model in MODELS:
        for stage in (2, 3):
            found[f"zero{stage} {model}"] = Asked(deepspeed_trainer(plain, stage), model=model)
    return found


@pytest.fixture(scope="module")
def batches(make_trajectory: MakeTrajectory) -> list[Batch]:
    return [ragged_batch(make_trajectory, seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def models(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    found = {"": tiny}
    auto: Any = transformers.AutoModelForCausalLM
    for name, config in MODELS.items():
        torch.manual_seed(0)
        found[name] = folder / config.model_type
        auto.from_config(config).save_pretrained(found[name])
    return found


LOW = msgspec.structs.replace(BASE, optimizer="sgd", learning_rate=0.1, weight_decay=0.0)
LOW_WEIGHTS = deepspeed_trainer(LOW, 3, engine="deepspeed", gradient_checkpointing=True)
LOW_WEIGHTS = msgspec.structs.replace(
    LOW_WEIGHTS, deepspeed=msgspec.structs.replace(LOW_WEIGHTS.deepspeed, weights="model")
)


@pytest.fixture(scope="module")
def done(
    models: dict[str, Path], batches: list[Batch], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, rank_processes.JobResult]:
    """Everything that two ranks do in these tests, done once."""
    folder = tmp_path_factory.mktemp("together")
    paths = [rank_processes.write_batch(folder / f"b{n}", each) for n, each in enumerate(batches)]
    jobs = [
        rank_processes.Job(name, str(models[model]), trainer, paths, dtype=dtype)
        for name, (trainer, dtype, model) in _asked().items()
    ]
    jobs += [
        rank_processes.Job("low", str(models[""]), LOW_WEIGHTS, paths, dtype="bfloat16"),
        rank_processes.Job(
            "low half",
            str(models[""]),
            LOW_WEIGHTS,
            paths[:1],
            dtype="bfloat16",
            save=str(folder / "low"),
        ),
        rank_processes.Job(
            "low resumed",
            str(models[""]),
            LOW_WEIGHTS,
            paths[1:],
            dtype="bfloat16",
            snapshot=str(folder / "low.snapshot"),
        ),
    ]
    return rank_processes.run_jobs(jobs, 2, folder)


@pytest.mark.parametrize("name", sorted(_asked()))
def test_what_is_asked_for_together_gives_the_updates_of_torch(
    done: dict[str, rank_processes.JobResult],
    models: dict[str, Path],
    batches: list[Batch],
    name: str,
) -> None:
    trainer, dtype, model = _asked()[name]
    before, after, metrics = update_on_torch(models[model], trainer, batches, dtype)
    ours = done[name]
    assert ours.skipped == ["", ""]
    assert {key: value.dtype for key, value in ours.tensors.items()} == {
        key: value.dtype for key, value in after.items()
    }
    start, end = flatten(before, "weights/"), flatten(after, "weights/")
    assert relative_distance(flatten(ours.tensors, "weights/") - start, end - start) < NEAR[dtype]
    loss, norm = ours.metrics[-1]["loss"], ours.metrics[-1]["grad_norm"]
    near = NEAR[dtype]
    assert (loss, norm) == pytest.approx(
        (metrics["loss"], metrics["grad_norm"]), rel=near, abs=near
    )


def test_weights_in_bfloat16_have_masters_that_move_as_those_of_torch_do(
    done: dict[str, rank_processes.JobResult], models: dict[str, Path], batches: list[Batch]
) -> None:
    """Masters begin at the weights' bfloat16; from there both take the same two steps, nearly."""
    before, after, _ = update_on_torch(models[""], LOW, batches, "bfloat16")
    found = flatten(done["low"].tensors, "weights/")
    assert found.dtype == torch.float32
    start, end = flatten(before, "weights/"), flatten(after, "weights/")
    rounded = start.bfloat16().float()
    assert relative_distance(found - rounded, end - start) < 0.1
    assert relative_distance(found.bfloat16().float(), found) > 0


def test_weights_in_bfloat16_go_on_from_their_masters(
    done: dict[str, rank_processes.JobResult],
) -> None:
    through, resumed = (flatten(done[name].tensors, "weights/") for name in ("low", "low resumed"))
    assert relative_distance(resumed, through) < 1e-6
