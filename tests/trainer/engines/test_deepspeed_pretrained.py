"""SmolLM2 in bfloat16 on ZeRO 3: one update of what it said itself, beside torch's engine.

It is larger than the buckets in which ZeRO sends gradients, and its head is its embedding.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import rank_processes
import torch
from backends import NEEDS_DEEPSPEED
from engine_updates import (
    MakeTrajectory,
    Tensors,
    deepspeed_trainer,
    flatten,
    relative_distance,
    update_on_torch,
)
from tokenizers import Tokenizer

from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.trajectory import PolicyRef
from agentrl.serving.engine_api import Request
from agentrl.serving.local.engine import LocalEngine
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), NEEDS_DEEPSPEED]

PLAIN = Trainer(normalise="none", optimizer="sgd", learning_rate=0.1, weight_decay=0.0)
TRAINERS = {
    "whole": deepspeed_trainer(PLAIN, 3),
    "adapter": deepspeed_trainer(PLAIN, 3, lora=Lora(rank=4)),
}
SAMPLED = 8  # tokens of each of 4 trajectories
# Relative distance of two updates, and of their metrics: ranks pack the batch differently from
# torch, and products in bfloat16 round differently with each shape. Measured: 0.008.
NEAR = 0.05


class OnTorch(NamedTuple):
    """What an update of torch's engine changed."""

    before: Tensors
    after: Tensors
    metrics: Mapping[str, float]


@pytest.fixture(scope="module")
def batch(smollm2: Path, make_trajectory: MakeTrajectory, policies: dict[str, PolicyRef]) -> Batch:
    """Two good and two bad continuations, with the log-probabilities of the local engine."""
    torch.set_num_threads(1)
    prompt = Tokenizer.from_file(str(smollm2 / "tokenizer.json")).encode("The capital is").ids
    with closing(LocalEngine(dtype="bfloat16", max_batch=4)) as engine:
        engine.load("policy", smollm2)
        asked = [engine.submit(Request("policy", prompt, SAMPLED, seed=n)) for n in range(4)]
        found = [each.result(600) for each in asked]
    members = tuple(
        make_trajectory(
            [(len(prompt), len(prompt) + SAMPLED)],
            len(prompt) + SAMPLED,
            reward=float(n % 2),
            policies=(policies["current"],),
            tokens=[*prompt, *completion.token_ids],
            logprobs=[0.0] * len(prompt) + completion.logprobs,
            seed=n,
        )
        for n, completion in enumerate(found)
    )
    return assemble_batch([TrainableGroup("g", "db", members)], resolve_settings(PLAIN))


@pytest.fixture(scope="module")
def on_torch(smollm2: Path, batch: Batch) -> dict[str, OnTorch]:
    return {
        name: OnTorch(*update_on_torch(smollm2, trainer, [batch], "bfloat16"))
        for name, trainer in TRAINERS.items()
    }


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def done(
    request: pytest.FixtureRequest,
    smollm2: Path,
    batch: Batch,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, rank_processes.JobResult], Path]:
    """What the ranks did, and the folder of their checkpoints."""
    folder = tmp_path_factory.mktemp(f"ranks-{request.param}")
    path = rank_processes.write_batch(folder / "batch", batch)
    jobs = [
        rank_processes.Job(
            name, str(smollm2), trainer, [path], dtype="bfloat16", save=str(folder / name)
        )
        for name, trainer in TRAINERS.items()
    ]
    return rank_processes.run_jobs(jobs, request.param, folder, timeout_s=600.0), folder


@pytest.mark.parametrize("name", TRAINERS)
def test_an_update_of_a_real_model_is_that_of_torch(
    done: tuple[dict[str, rank_processes.JobResult], Path],
    on_torch: dict[str, OnTorch],
    name: str,
) -> None:
    ours, (before, after, metrics) = done[0][name], on_torch[name]
    assert ours.skipped == [""]
    assert set(ours.tensors) == set(after)
    start, end = flatten(before, "weights/"), flatten(after, "weights/")
    found = flatten(ours.tensors, "weights/")
    assert relative_distance(found - start, end - start) < NEAR
    said = ours.metrics[0]
    assert said.keys() == metrics.keys()
    for key in said.keys() - {"seconds"}:
        assert said[key] == pytest.approx(metrics[key], rel=NEAR, abs=0.01), key
    assert said["mismatch_k3"] < 0.01  # of the engine's log-probabilities


@pytest.mark.parametrize("name", TRAINERS)
def test_its_checkpoint_loads_in_plain_transformers_with_the_weights_of_the_ranks(
    done: tuple[dict[str, rank_processes.JobResult], Path], smollm2: Path, name: str
) -> None:
    from transformers import AutoModelForCausalLM

    ours, path = done[0][name], done[1] / name
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2 if name == "adapter" else path)
    assert model.dtype == torch.bfloat16
    if name == "adapter":
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, path, autocast_adapter_dtype=False)
        model = model.get_base_model()
    found = dict(model.named_parameters())
    trained = {name: each for name, each in ours.tensors.items() if name.startswith("weights/")}
    assert trained
    for key, tensor in trained.items():
        assert torch.equal(found[key.removeprefix("weights/")], tensor.bfloat16()), key
    assert (path / "tokenizer.json").read_bytes() == (smollm2 / "tokenizer.json").read_bytes()
