"""Torch's engine and DeepSpeed's, on the same batches: the same updates, snapshots, checkpoints."""

import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_processes
import torch
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
from torch import Tensor

from agentrl.core.config.sections.training import Trainer
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.optimizer import learning_rate
from agentrl.trainer.snapshots import snapshots

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), NEEDS_DEEPSPEED]

RANKS = (1, 2)
MOST = 100_000  # tokens of a pass: any number
SCARCE = 400  # bytes of all ranks: room for an update in one pass, but a tenth of it not free


def _equal() -> dict[str, Trainer]:
    """Every sharding with both optimizers, with one and with several passes, packed and not."""
    found = {}
    for stage in (0, 1, 2, 3):
        for rule in ("adamw", "sgd"):
            for budget in (100, MOST):
                name = f"zero{stage}-{rule}-{budget}"
                found[name] = deepspeed_trainer(
                    BASE, stage, optimizer=rule, micro_batch_tokens=budget
                )
    found["zero3-apart"] = deepspeed_trainer(BASE, 3, packing=False)
    found["zero2-again"] = deepspeed_trainer(BASE, 2, gradient_checkpointing=True)
    found["zero3-again"] = deepspeed_trainer(BASE, 3, gradient_checkpointing=True)
    found["zero3-lora"] = deepspeed_trainer(BASE, 3, lora=LORA)
    found["zero2-lora-kl"] = deepspeed_trainer(BASE, 2, lora=LORA, kl_weight=0.1)
    found["zero3-kl"] = deepspeed_trainer(BASE, 3, kl_weight=0.1)
    found["zero2-several"] = deepspeed_trainer(BASE, 2, optimizer_steps=3)
    found["zero3-several"] = deepspeed_trainer(BASE, 3, optimizer_steps=2, optimizer="sgd")
    found["zero2-gspo"] = deepspeed_trainer(
        BASE, 2, loss="gspo", old="behaviour", clip_high=0.5, mixed_sequences=True
    )
    return found


def _more_steps() -> Trainer:
    return deepspeed_trainer(BASE, 2, optimizer_steps=4, decay_updates=2)


@pytest.fixture(scope="module")
def batches(make_trajectory: MakeTrajectory) -> list[Batch]:
    return [ragged_batch(make_trajectory, seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def lonely(make_trajectory: MakeTrajectory) -> Batch:
    """One trajectory with loss tokens: whoever else is there has nothing to do."""
    members = (make_trajectory([(3, 8)], 10, reward=1.0), make_trajectory([], 6, seed=1))
    return assemble_batch([TrainableGroup("g", "db", members)], resolve_settings(BASE))


@pytest.fixture(scope="module", params=RANKS, ids=["1 rank", "2 ranks"])
def done(
    request: pytest.FixtureRequest,
    tiny: Path,
    batches: list[Batch],
    lonely: Batch,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, rank_processes.JobResult], Path]:
    """Everything that ranks do in these tests, done once; and the folder of what they wrote."""
    folder = tmp_path_factory.mktemp(f"ranks-{request.param}")
    paths = [rank_processes.write_batch(folder / f"b{n}", each) for n, each in enumerate(batches)]
    spoilt = [
        rank_processes.write_batch(folder / f"x{n}", each)
        for n, each in enumerate(_spoilt(batches))
    ]
    alone = rank_processes.write_batch(folder / "alone", lonely)

    def job(name: str, trainer: Trainer, given: list[str], **more: Any) -> rank_processes.Job:
        return rank_processes.Job(name, str(tiny), trainer, given, **more)

    jobs = [job(name, trainer, paths) for name, trainer in _equal().items()]
    for stage in (0, 1, 2, 3):
        plain = deepspeed_trainer(BASE, stage)
        bad = [*spoilt] if stage < 3 else [spoilt[0], spoilt[2]]  # ZeRO 3 adds norms up in fp64
        jobs.append(job(f"spoilt{stage}", plain, [paths[0], *bad, paths[1]]))
        jobs.append(job(f"alone{stage}", plain, [alone]))
        jobs.append(job(f"looks{stage}", _equal()[f"zero{stage}-adamw-100"], paths, looks=True))
        jobs.append(job(f"half{stage}", plain, paths[:1], save=str(folder / f"half{stage}")))
        other = deepspeed_trainer(BASE, 3 - stage)
        snapshot = str(folder / f"half{stage}.snapshot")
        jobs.append(job(f"resumed{stage}", other, paths[1:], snapshot=snapshot))
    _torch_half(tiny, batches[0], folder / "torch.snapshot")
    given = {"snapshot": str(folder / "torch.snapshot")}
    jobs += [
        job(f"moved{stage}", deepspeed_trainer(BASE, stage), paths[1:], **given)
        for stage in (0, 2, 3)
    ]
    jobs.append(job("more-steps", _more_steps(), paths[1:], **given))
    adapter = deepspeed_trainer(BASE, 3, lora=LORA)
    jobs.append(job("adapter", adapter, paths, save=str(folder / "adapter")))
    low = deepspeed_trainer(BASE, 3)
    jobs.append(job("low", low, paths, dtype="bfloat16", save=str(folder / "low")))
    scarce = deepspeed_trainer(BASE, 2, micro_batch_tokens=MOST)
    memory = [1000] * (request.param - 1) + [SCARCE // request.param]
    jobs.append(job("scarce", scarce, [paths[0], *paths], memory=memory))
    return rank_processes.run_jobs(jobs, request.param, folder), folder


def _spoilt(batches: list[Batch]) -> list[Batch]:
    """Whose loss is not finite; whose gradient's norm is not; which have no loss token."""
    batch = batches[0]
    chosen = np.flatnonzero(batch.loss_mask)
    bad, huge = batch.advantages.copy(), batch.advantages.copy()
    bad[chosen[5]] = np.nan
    huge[chosen] = np.where(huge[chosen] > 0, 1e30, -1e30)
    nothing = np.zeros_like(batch.loss_mask)
    silent = replace(batch, loss_mask=nothing, shares=nothing.astype(np.float32))
    return [replace(batch, advantages=bad), replace(batch, advantages=huge), silent]


def _torch_half(tiny: Path, batch: Batch, path: Path) -> None:
    learner = TorchLearner(tiny, resolve_settings(BASE), Hardware())
    learner.update(batch)
    snapshots.save(path, learner.state(), checkpoint_id="c", version=1)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_state_that_is_read_before_a_step_does_not_change_the_step(
    done: tuple[dict[str, rank_processes.JobResult], Path], stage: int
) -> None:
    """A snapshot of the former update is begun there."""
    expected, found = done[0][f"zero{stage}-adamw-100"], done[0][f"looks{stage}"]
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name


@pytest.mark.parametrize("name", sorted(_equal()))
def test_the_same_batches_give_the_same_updates_as_on_torch(
    done: tuple[dict[str, rank_processes.JobResult], Path],
    tiny: Path,
    batches: list[Batch],
    name: str,
) -> None:
    trainer, ours = _equal()[name], done[0][name]
    before, after, metrics = update_on_torch(tiny, trainer, batches)
    assert set(ours.tensors) == set(after)
    start, end = flatten(before, "weights/"), flatten(after, "weights/")
    assert relative_distance(flatten(ours.tensors, "weights/") - start, end - start) < 1e-4
    if trainer.optimizer == "adamw":
        for key in ("exp_avg/", "exp_avg_sq/", "step/"):
            assert relative_distance(flatten(ours.tensors, key), flatten(after, key)) < 1e-4
    found = dict(ours.metrics[-1])
    assert found.keys() == metrics.keys()
    for key in found.keys() - {"seconds"}:
        assert found[key] == pytest.approx(metrics[key], rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_is_not_finite_moves_nothing_on_any_rank_and_the_next_update_is_as_if_not_asked(
    done: tuple[dict[str, rank_processes.JobResult], Path],
    tiny: Path,
    batches: list[Batch],
    stage: int,
) -> None:
    ours = done[0][f"spoilt{stage}"]
    reasons = ["loss is not finite", "gradient norm is not finite", "no loss token"]
    assert ours.skipped == ["", *(reasons if stage < 3 else reasons[::2]), ""]
    before, after, _ = update_on_torch(tiny, BASE, batches)
    start, end = flatten(before, "weights/"), flatten(after, "weights/")
    assert relative_distance(flatten(ours.tensors, "weights/") - start, end - start) < 1e-4


def test_all_ranks_lower_their_passes_where_one_has_little_memory(
    done: tuple[dict[str, rank_processes.JobResult], Path], tiny: Path, batches: list[Batch]
) -> None:
    ours = done[0]["scarce"]
    budgets = [each["micro_batch_tokens"] for each in ours.metrics]
    peaks = [each["micro_batch_peak_bytes"] for each in ours.metrics]
    assert budgets[0] == MOST
    assert all(budget < peaks[0] for budget in budgets[1:])
    assert all(each < peaks[0] for each in peaks[1:])
    before, after, _ = update_on_torch(tiny, BASE, [batches[0], *batches])
    start, end = flatten(before, "weights/"), flatten(after, "weights/")
    assert relative_distance(flatten(ours.tensors, "weights/") - start, end - start) < 1e-4


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_rank_without_work_takes_part(
    done: tuple[dict[str, rank_processes.JobResult], Path], tiny: Path, lonely: Batch, stage: int
) -> None:
    before, after, _ = update_on_torch(tiny, BASE, [lonely])
    start, end = flatten(before, "weights/"), flatten(after, "weights/")
    found = flatten(done[0][f"alone{stage}"].tensors, "weights/")
    assert relative_distance(found - start, end - start) < 1e-4


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_snapshot_goes_on_under_another_sharding_as_if_nothing_had_been(
    done: tuple[dict[str, rank_processes.JobResult], Path], stage: int
) -> None:
    through = done[0][f"zero{3 - stage}-adamw-100"].tensors
    resumed, half = done[0][f"resumed{stage}"].tensors, done[0][f"half{stage}"].tensors
    assert relative_distance(flatten(half, "weights/"), flatten(through, "weights/")) > 1e-4
    for key in ("weights/", "exp_avg/", "exp_avg_sq/", "step/"):
        assert relative_distance(flatten(resumed, key), flatten(through, key)) < 1e-6


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_snapshot_of_torch_goes_on_under_deepspeed(
    done: tuple[dict[str, rank_processes.JobResult], Path],
    tiny: Path,
    batches: list[Batch],
    stage: int,
) -> None:
    before, after, _ = update_on_torch(tiny, BASE, batches)
    start, end = flatten(before, "weights/"), flatten(after, "weights/")
    found = flatten(done[0][f"moved{stage}"].tensors, "weights/")
    assert relative_distance(found - start, end - start) < 1e-4


def test_the_learning_rate_goes_on_by_updates_under_another_number_of_steps(
    done: tuple[dict[str, rank_processes.JobResult], Path],
) -> None:
    """One update of one step is one of four."""
    expected = learning_rate(resolve_settings(_more_steps()), 4)
    assert done[0]["more-steps"].metrics[0]["learning_rate"] == pytest.approx(expected)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_snapshot_of_deepspeed_goes_on_under_torch(
    done: tuple[dict[str, rank_processes.JobResult], Path],
    tiny: Path,
    batches: list[Batch],
    stage: int,
) -> None:
    learner = TorchLearner(tiny, resolve_settings(BASE), Hardware())
    learner.load_state(snapshots.load(done[1] / f"half{stage}.snapshot")[0])
    assert learner.update(batches[1]).skipped == ""
    before, after, _ = update_on_torch(tiny, BASE, batches)
    start, end = flatten(before, "weights/"), flatten(after, "weights/")
    found = flatten(learner.state().tensors, "weights/")
    assert relative_distance(found - start, end - start) < 1e-4


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_checkpoint_loads_in_plain_transformers_and_says_what_its_probe_says(
    done: tuple[dict[str, rank_processes.JobResult], Path], stage: int
) -> None:
    from transformers import AutoModelForCausalLM

    ours, path = done[0][f"half{stage}"], done[1] / f"half{stage}"
    model = AutoModelForCausalLM.from_pretrained(path)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, ours.tensors[f"weights/{name}"]), name
    assert (path / "tokenizer.json").is_file()
    assert ours.probe == pytest.approx(_probe(model), abs=1e-5)


def test_an_adapter_loads_in_plain_peft_and_says_what_its_probe_says(
    done: tuple[dict[str, rank_processes.JobResult], Path], tiny: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny)
    model = PeftModel.from_pretrained(base, done[1] / "adapter")
    assert done[0]["adapter"].probe == pytest.approx(_probe(model), abs=1e-5)


def test_bfloat16_keeps_masters_in_fp32_and_is_saved_low(
    done: tuple[dict[str, rank_processes.JobResult], Path], tiny: Path, batches: list[Batch]
) -> None:
    from safetensors.torch import load_file

    ours, path = done[0]["low"], done[1] / "low"
    learner = TorchLearner(tiny, resolve_settings(BASE), Hardware(dtype="bfloat16"))
    before = learner.state().tensors
    for batch in batches:
        learner.update(batch)
    start, end = flatten(before, "weights/"), flatten(learner.state().tensors, "weights/")
    assert relative_distance(flatten(ours.tensors, "weights/") - start, end - start) < 0.1
    saved = load_file(path / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.bfloat16}
    apart = [abs(a - b) for a, b in zip(ours.probe, learner.probe().logprobs, strict=True)]
    assert statistics.median(apart) < 0.05
    assert max(apart) < 0.3


def _probe(model: Any) -> list[float]:
    from agentrl.trainer.model.trainable_model import probe_with

    def said(ids: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
        return logits

    return probe_with(said, model).logprobs


def test_memory_that_runs_out_on_a_rank_ends_all_ranks_with_a_clear_error(
    tiny: Path, batches: list[Batch], tmp_path: Path
) -> None:
    paths = [rank_processes.write_batch(tmp_path / "batch", batches[0])]
    trainer = deepspeed_trainer(BASE, 3, micro_batch_tokens=MOST)
    job = rank_processes.Job("full", str(tiny), trainer, paths, memory=[1000, 8])
    (tmp_path / "out").mkdir()
    started = rank_processes.start([job], 2, tmp_path, timeout_s=5.0)
    assert all(process.wait(rank_processes.PATIENCE_S) for process, _ in started)
    texts = [log.read_text() for _, log in started]
    said = r"ConfigError: trainer: a pass of \d+ tokens does not fit into memory: .* 1 GiB\.$"
    assert re.search(said, texts[1], re.MULTILINE), texts[1]
