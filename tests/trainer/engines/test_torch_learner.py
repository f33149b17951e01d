import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_updates import (
    MakeTrajectory,
    flatten,
    plain_logprobs,
    ragged_batch,
    relative_distance,
)
from torch import Tensor
from torch_device import DEVICE

from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import Batch, assemble_batch
from agentrl.trainer.engines import torch_learner
from agentrl.trainer.engines.learner import Gates, Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.files.loading import load_model
from agentrl.trainer.snapshots.snapshots import State

HARDWARE = Hardware(DEVICE)
SETTINGS = resolve_settings(Trainer(learning_rate=1e-3, task_norm_min_tokens=8))


@pytest.fixture
def batch(make_trajectory: MakeTrajectory) -> Batch:
    return ragged_batch(make_trajectory, chosen=SETTINGS)


def _weights(learner: TorchLearner) -> dict[str, Tensor]:
    return {k: v for k, v in learner.state().tensors.items() if k.startswith("weights/")}


def _plain_model(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(DEVICE)


def _loss_token_logprobs(path: Path, batch: Batch) -> Floats:
    found: Floats = plain_logprobs(_plain_model(path), batch).detach().cpu().numpy()
    return found * batch.loss_mask


def test_log_probabilities_are_those_of_a_plain_forward(tiny: Path, batch: Batch) -> None:
    expected = _loss_token_logprobs(tiny, batch)
    own = replace(batch, behaviour=expected)
    learner = TorchLearner(tiny, replace(SETTINGS, micro_batch_tokens=100), HARDWARE)
    assert np.abs(learner._accumulate(own).logprobs - expected).max() < 1e-5
    metrics = learner.update(own).values
    assert metrics["mismatch_k3"] < 1e-9
    assert metrics["max_ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["effective_sample_size"] == pytest.approx(1.0, abs=1e-6)


def test_the_update_is_adamw_on_the_token_mean_over_the_whole_window(
    tiny: Path, batch: Batch
) -> None:
    learner = TorchLearner(tiny, replace(SETTINGS, micro_batch_tokens=64), HARDWARE)
    before = flatten(learner.state().tensors, "weights/")
    metrics, model = learner.update(batch).values, _plain_model(tiny)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    behaviour, advantages, chosen = (
        torch.from_numpy(each).to(DEVICE)
        for each in (batch.behaviour, batch.advantages, batch.loss_mask)
    )
    current = plain_logprobs(model, batch)
    weight = (current.detach() - behaviour).exp().clamp(max=2.0)
    ratio = (current - current.detach()).exp()
    torch.autograd.backward(-(weight * ratio * advantages)[chosen].mean())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    moved = dict(model.named_parameters())
    expected = torch.cat([moved[name].detach().flatten().cpu() for name in sorted(moved)])
    # Adam's first step magnifies rounding where the gradient is ~0.
    after = flatten(learner.state().tensors, "weights/")
    assert relative_distance(after - before, expected - before) < 1e-3


@pytest.mark.parametrize(
    "config",
    [
        Trainer(),
        Trainer(preset="paper"),
        Trainer(loss="cispo", aggregate="group_mean", task_weights={"kg": 2.0}),
        Trainer(loss="gspo", old="behaviour", clip_high=0.5, mixed_sequences=True),
        Trainer(optimizer="sgd"),
        Trainer(preset="paper", lora=Lora(rank=4)),
    ],
    ids=["default", "paper", "cispo", "gspo", "sgd", "lora"],
)
def test_packing_micro_batching_and_computing_again_do_not_change_the_update(
    tiny: Path, make_trajectory: MakeTrajectory, config: Trainer
) -> None:
    chosen = replace(resolve_settings(config), learning_rate=1e-3, task_norm_min_tokens=8)
    batch = ragged_batch(make_trajectory, chosen=chosen)
    before = flatten(TorchLearner(tiny, chosen, HARDWARE).state().tensors, "weights/")
    changes = []
    for budget, packing, again in ((100_000, 1, 0), (60, 1, 0), (100_000, 0, 0), (60, 1, 1)):
        engine = replace(chosen, micro_batch_tokens=budget, packing=bool(packing))
        engine = replace(engine, gradient_checkpointing=bool(again))
        learner = TorchLearner(tiny, engine, HARDWARE)
        learner.update(batch)
        changes.append(flatten(learner.state().tensors, "weights/") - before)
    # Adam's first step magnifies rounding where the gradient is ~0.
    near = 1e-4 if chosen.optimizer == "sgd" else 1e-3
    assert max(relative_distance(change, changes[0]) for change in changes[1:]) < near


def test_a_loss_that_is_not_finite_moves_nothing_and_says_so(tiny: Path, batch: Batch) -> None:
    learner = TorchLearner(tiny, SETTINGS, HARDWARE)
    before = _weights(learner)
    poisoned = batch.advantages.copy()
    poisoned[np.flatnonzero(batch.loss_mask)[5]] = math.nan
    metrics = learner.update(replace(batch, advantages=poisoned))
    assert metrics.skipped == "loss is not finite"
    assert all(math.isfinite(value) for value in metrics.values.values())
    assert all(torch.equal(before[name], now) for name, now in _weights(learner).items())
    assert learner.update(batch).skipped == ""


def test_a_batch_without_loss_tokens_moves_nothing_and_says_so(tiny: Path, batch: Batch) -> None:
    learner = TorchLearner(tiny, SETTINGS, HARDWARE)
    nothing = np.zeros_like(batch.loss_mask)
    masked = replace(batch, loss_mask=nothing, shares=nothing.astype(np.float32))
    assert learner.update(masked).skipped == "no loss token"
    assert learner.update(assemble_batch([], SETTINGS)).skipped == "no loss token"


def test_metrics_are_split_by_task_and_by_freshness(tiny: Path, batch: Batch) -> None:
    values = TorchLearner(tiny, SETTINGS, HARDWARE).update(batch).values
    expected = _loss_token_logprobs(tiny, batch)
    difference = (expected - batch.behaviour).astype(np.float64)
    for suffix, freshness in (("_fresh", batch.fresh), ("_lagged", ~batch.fresh)):
        part = difference[batch.loss_mask & freshness]
        assert values[f"mismatch_k1{suffix}"] == pytest.approx(-part.mean(), rel=1e-4)
        assert values[f"mismatch_k3{suffix}"] == pytest.approx(
            (np.exp(part) - part - 1).mean(), rel=1e-4
        )
        assert values[f"mismatch_abs{suffix}"] == pytest.approx(np.abs(part).mean(), rel=1e-4)
        weights = np.exp(part)
        share = weights.sum() ** 2 / (weights**2).sum() / weights.size
        assert values[f"effective_sample_size{suffix}"] == pytest.approx(share, rel=1e-4)
        assert values[f"loss_tokens{suffix}"] == part.size
    weights = np.exp(difference[batch.loss_mask & (batch.token_tasks == 1)])
    share = weights.sum() ** 2 / (weights**2).sum() / weights.size
    assert values["kg/effective_sample_size"] == pytest.approx(share, rel=1e-4)
    assert values["kg/max_ratio"] == pytest.approx(weights.max(), rel=1e-4)
    assert (values["db/success"], values["db/reward"], values["db/normalised"]) == (0.5, 0.5, 1.0)
    assert values["tokens"] == batch.tokens.size
    assert values["loss_tokens"] == values["db/loss_tokens"] + values["kg/loss_tokens"]
    assert 0 < values["entropy"] < math.log(96)


def test_the_paper_preset_holds_the_policy_near_its_reference(tiny: Path, batch: Batch) -> None:
    chosen = resolve_settings(Trainer(preset="paper", learning_rate=1e-3))
    learner = TorchLearner(tiny, chosen, HARDWARE)
    assert learner.update(batch).values["kl"] == pytest.approx(0.0, abs=1e-9)
    assert learner.update(batch).values["kl"] > 1e-6
    assert "kl" not in TorchLearner(tiny, SETTINGS, HARDWARE).update(batch).values


def test_a_head_in_chunks_gives_the_same_gradient(tiny: Path, batch: Batch) -> None:
    whole = TorchLearner(tiny, SETTINGS, HARDWARE)
    chunked = TorchLearner(tiny, SETTINGS, Hardware(DEVICE, chunk_logits=96 * 5))
    whole.update(batch)
    chunked.update(batch)
    for name, tensor in _weights(whole).items():
        assert torch.allclose(tensor, _weights(chunked)[name], atol=1e-6)


def test_a_copy_of_the_weights_is_not_changed_by_a_later_update(
    tiny: Path, batch: Batch, tmp_path: Path
) -> None:
    learner = TorchLearner(tiny, SETTINGS, HARDWARE)
    learner.update(batch)
    before, write = _weights(learner), learner.copy_weights()
    learner.update(batch)
    write(tmp_path)
    loaded = load_model(tmp_path, torch.device("cpu"))
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, before[f"weights/{name}"])
        assert not torch.equal(parameter, _weights(learner)[f"weights/{name}"])


def test_freed_memory_is_returned_after_every_step(
    tiny: Path, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = TorchLearner(tiny, replace(SETTINGS, optimizer_steps=2), HARDWARE)
    gradients = []

    def record() -> None:
        gradients.append(sum(p.grad is not None for p in learner._model.parameters()))

    monkeypatch.setattr(torch_learner.malloc_tuning, "release_unused", record)
    learner.update(batch)
    assert gradients == [0, 0]


def test_steps_of_an_update_compare_with_the_policy_before_the_first(
    tiny: Path, batch: Batch
) -> None:
    """Sampled by that very policy, the batch has this ratio as π/μ, too."""
    start = TorchLearner(tiny, SETTINGS, HARDWARE)
    own = replace(batch, behaviour=start._accumulate(batch).logprobs)
    several = TorchLearner(tiny, replace(SETTINGS, optimizer_steps=3), HARDWARE)
    settings = resolve_settings(
        Trainer(learning_rate=1e-3, task_norm_min_tokens=8, old="behaviour", importance="none")
    )
    one_by_one = TorchLearner(tiny, settings, HARDWARE)
    calls: list[int] = []
    found = several.update(own, Gates(before_step=lambda: calls.append(len(calls))))
    expected = [one_by_one.update(own).values for _ in range(3)]
    assert calls == [0]
    _require_equal(_with_steps(several.state(), 1), one_by_one.state())
    assert found.skipped == ""
    assert found.values["clip_fraction"] == expected[2]["clip_fraction"] > 0.0
    assert found.values["kg/clip_fraction"] == expected[2]["kg/clip_fraction"]
    for name in ("loss", "entropy", "max_ratio", "grad_norm", "mismatch_k3"):
        assert found.values[name] == expected[0][name]


def test_a_later_step_that_is_not_finite_is_the_last(tiny: Path, batch: Batch) -> None:
    huge = {"learning_rate": 1e30, "optimizer": "sgd", "max_grad_norm": 1e6}
    one, several = (
        TorchLearner(tiny, replace(SETTINGS, optimizer_steps=count, **huge), HARDWARE)
        for count in (1, 3)
    )
    assert one.update(batch).skipped == several.update(batch).skipped == ""
    _require_equal(_with_steps(one.state(), 3), several.state())
    assert several.update(batch).skipped != ""


@pytest.mark.parametrize("gate", ["before_pass", "before_step"])
def test_nothing_has_changed_when_an_update_may_step_or_is_given_up(
    tiny: Path, batch: Batch, gate: str
) -> None:
    settings = replace(SETTINGS, micro_batch_tokens=100)
    learner, other = (TorchLearner(tiny, settings, HARDWARE) for _ in range(2))
    learner.update(batch)
    other.update(batch)
    before = learner.state()
    calls = 0

    def give_up() -> None:
        nonlocal calls
        calls += 1
        _require_equal(learner.state(), before)
        if gate == "before_step" or calls == 2:  # after the gradient of a first pass
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.update(batch, Gates(**{gate: give_up}))
    _require_equal(learner.state(), before)
    fresh = TorchLearner(tiny, settings, HARDWARE)
    fresh.load_state(learner.state())
    fresh.update(batch)
    learner.update(batch)
    other.update(batch)
    _require_equal(fresh.state(), other.state())
    _require_equal(learner.state(), other.state())


def _with_steps(state: State, count: int) -> State:
    """The state that a learner of `count` steps an update would have."""
    return replace(state, values={**state.values, "optimizer_steps": count})


def _require_equal(found: State, expected: State) -> None:
    assert found.values == expected.values
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name


def test_saved_weights_load_in_plain_transformers_with_the_tokenizer_files(
    tiny: Path, batch: Batch, tmp_path: Path
) -> None:
    learner = TorchLearner(tiny, SETTINGS, HARDWARE)
    learner.update(batch)
    learner.copy_weights()(tmp_path / "saved")
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "saved" / name).read_bytes() == (tiny / name).read_bytes()
    loaded = load_model(tmp_path / "saved", torch.device("cpu"))
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, learner.state().tensors[f"weights/{name}"])


def test_bfloat16_computes_low_and_keeps_masters_in_fp32(
    tiny: Path, batch: Batch, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    learner = TorchLearner(
        tiny, replace(SETTINGS, learning_rate=1e-6), Hardware(DEVICE, dtype="bfloat16")
    )
    before = _weights(learner)
    assert learner.update(batch).skipped == ""
    assert any(not torch.equal(before[name], now) for name, now in _weights(learner).items())
    learner.copy_weights()(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.bfloat16}
