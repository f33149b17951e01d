"""Teachers that score batches for a real learner; all models are tiny and random."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from engine_updates import MakeTrajectory, plain_logprobs, ragged_batch
from random_model import save_random_qwen3
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from agentrl.checkpoints.directories import publish
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.errors import CheckpointError, ConfigError
from agentrl.serving.local.adapter_sum import merge_adapter
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import Batch
from agentrl.trainer.distillation import (
    DistillingLearner,
    ResolvedTeacher,
    TeacherScorer,
    check_tokenizer,
)
from agentrl.trainer.engines.learner import OPEN, Gates, Hardware, Metrics
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.files.export import export
from agentrl.trainer.model.frozen_model import FrozenModel
from agentrl.trainer.model.packing import micro_batches
from agentrl.trainer.model.trainable_model import ADAPTER_WEIGHTS

TRAINER = Trainer(learning_rate=3e-3, rewards=False, importance="none", micro_batch_tokens=100)
SETTINGS = resolve_settings(TRAINER)
ADAPTING = resolve_settings(msgspec.structs.replace(TRAINER, rewards=True, lora=Lora(rank=4)))


@pytest.fixture(scope="module")
def other(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights with the same tokenizer."""
    directory = tmp_path_factory.mktemp("other")
    save_random_qwen3(directory, 1)
    shutil.copyfile(tiny / "tokenizer.json", directory / "tokenizer.json")
    return directory


@pytest.fixture
def batch(make_trajectory: MakeTrajectory) -> Batch:
    return ragged_batch(make_trajectory, chosen=SETTINGS)


def teacher(path: Path, *tasks: str, weight: float = 1.0) -> ResolvedTeacher:
    return ResolvedTeacher("one", f"at {path.name}", tasks, weight, path, "digest")


def scoring(*teachers: ResolvedTeacher) -> TeacherScorer:
    return TeacherScorer(
        [
            (each, FrozenModel(each.path or Path(), SETTINGS, Hardware(), merge_adapter))
            for each in teachers
        ]
    )


def distilling(policy: Path, *teachers: ResolvedTeacher) -> DistillingLearner:
    return DistillingLearner(TorchLearner(policy, SETTINGS, Hardware()), scoring(*teachers))


def weights(learner: DistillingLearner) -> Mapping[str, torch.Tensor]:
    return {k: v for k, v in learner.state().tensors.items() if k.startswith("weights/")}


def test_a_teacher_scores_the_loss_tokens_of_its_tasks_like_a_plain_forward(
    tiny: Path, other: Path, batch: Batch
) -> None:
    from transformers import AutoModelForCausalLM

    scorer = scoring(teacher(other, "kg", weight=0.5))
    scored = scorer.score(batch)
    own = batch.loss_mask & (batch.token_tasks == batch.tasks.index("kg"))
    assert own.any()
    assert (own != batch.loss_mask).any()
    assert scored.teacher_weights.tolist() == (0.5 * own).tolist()
    model = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32)
    expected = plain_logprobs(model, batch).detach().numpy() * own
    assert np.abs(scored.teacher_logprobs - expected).max() < 1e-5


def test_an_adapter_scores_like_its_merged_model_and_like_the_learner_that_made_it(
    tiny: Path, batch: Batch, tmp_path: Path
) -> None:
    learner = TorchLearner(tiny, ADAPTING, Hardware())
    rewarded = replace(batch, advantages=np.linspace(-9, 9, batch.tokens.size, dtype=np.float32))
    for _ in range(3):
        assert not learner.update(rewarded).skipped
    adapter = tmp_path / "adapter"
    publish(adapter, learner.copy_weights(), checkpoint_id="adapter", version=1, parent=None)
    export(adapter, tmp_path / "merged", merge_adapter)
    own, whole, base = (
        scoring(teacher(path, "db", "kg")).score(batch).teacher_logprobs
        for path in (adapter, tmp_path / "merged", tiny)
    )
    assert np.abs(own - whole).max() < 1e-4
    assert np.abs(own - base).max() > 0.05
    taught = DistillingLearner(learner, scoring(teacher(adapter, "db", "kg")))
    assert taught.update(batch).values["reverse_kl"] == pytest.approx(0.0, abs=1e-4)


def test_an_adapter_that_lacks_a_weight_cannot_teach(tiny: Path, tmp_path: Path) -> None:
    """peft would leave out what it lacks and only warn."""
    TorchLearner(tiny, ADAPTING, Hardware()).copy_weights()(tmp_path)
    weights = load_file(tmp_path / ADAPTER_WEIGHTS)
    del weights[min(weights)]
    save_file(weights, tmp_path / ADAPTER_WEIGHTS)
    with pytest.raises(CheckpointError, match=r"the weight .* does not fit adapter_config\.json"):
        scoring(teacher(tmp_path, "db"))


def test_a_policy_that_is_its_own_teacher_learns_nothing(tiny: Path, batch: Batch) -> None:
    learner = distilling(tiny, teacher(tiny, "db", "kg"))
    before = weights(learner)
    figures = learner.update(batch)
    assert figures.values["reverse_kl"] == pytest.approx(0.0, abs=1e-6)
    assert figures.values["grad_norm"] < 1e-5
    assert all(torch.allclose(weights(learner)[k], before[k], atol=1e-4) for k in before)


def test_rewards_do_not_matter_where_only_teachers_teach(
    tiny: Path, other: Path, make_trajectory: MakeTrajectory, batch: Batch
) -> None:
    rewarded = ragged_batch(make_trajectory, chosen=resolve_settings(Trainer()))
    assert rewarded.advantages.any()
    assert not batch.advantages.any()
    own = distilling(tiny, teacher(other, "db", "kg"))
    assert own.update(batch).values["grad_norm"] > 0.01


def test_the_advantage_of_a_teacher_is_added_to_that_of_the_rewards(
    tiny: Path, other: Path, batch: Batch
) -> None:
    """One update on both is the update on advantages that were added by hand."""
    rewards = np.linspace(-1, 1, batch.tokens.size, dtype=np.float32) * batch.loss_mask
    mixed = replace(batch, advantages=rewards)
    scored = scoring(teacher(other, "db", weight=0.5)).score(mixed)
    own = scoring(teacher(tiny, "db")).score(mixed)
    added = scored.teacher_weights * (scored.teacher_logprobs - own.teacher_logprobs)
    first = TorchLearner(tiny, SETTINGS, Hardware()).update(scored).values
    second = TorchLearner(tiny, SETTINGS, Hardware()).update(
        replace(batch, advantages=rewards + added)
    )
    assert first["grad_norm"] == pytest.approx(second.values["grad_norm"], rel=1e-4)
    assert first["loss"] == pytest.approx(second.values["loss"], abs=1e-5)


def test_each_trajectory_names_its_teacher_and_its_reverse_kl(
    tiny: Path, other: Path, batch: Batch
) -> None:
    learner = distilling(tiny, teacher(other, "kg"))
    current = scoring(teacher(tiny, "kg")).score(batch).teacher_logprobs
    away = scoring(teacher(other, "kg")).score(batch)
    figures = learner.update(batch)
    ends = np.cumsum(batch.lengths)
    for task, start, end, score in zip(
        batch.task_ids, ends - batch.lengths, ends, figures.teacher_scores, strict=True
    ):
        if batch.tasks[task] != "kg":
            assert score is None
            continue
        chosen = batch.loss_mask[start:end]
        expected = (current - away.teacher_logprobs)[start:end][chosen].mean()
        assert score is not None
        assert (score.name, score.digest) == ("one", "digest")
        assert score.reverse_kl == pytest.approx(float(expected), abs=1e-4)
    assert figures.values["kg/reverse_kl"] == figures.values["reverse_kl"]
    assert "db/reverse_kl" not in figures.values


class StopRequested(Exception):
    """Raised by a gate."""


def test_an_update_is_given_up_between_two_passes_of_a_teacher(
    tiny: Path, other: Path, batch: Batch
) -> None:
    passes = 0

    def stop_before_the_second() -> None:
        nonlocal passes
        passes += 1
        if passes == 2:
            raise StopRequested

    class Unreached(TorchLearner):
        def update(self, batch: Batch, gates: Gates = OPEN) -> Metrics:
            raise AssertionError(f"{batch} reached the policy through {gates}")

    policy = Unreached(tiny, SETTINGS, Hardware())
    learner = DistillingLearner(policy, scoring(teacher(other, "db", "kg")))
    assert len(micro_batches(batch, SETTINGS.pass_tokens)) > 2
    with pytest.raises(StopRequested):
        learner.update(batch, Gates(stop_before_the_second))
    assert passes == 2


def test_a_learner_that_resumes_from_a_state_gets_the_same_weights(
    tiny: Path, other: Path, batch: Batch
) -> None:
    through, stopped = (distilling(tiny, teacher(other, "db", "kg")) for _ in range(2))
    through.update(batch)
    stopped.update(batch)
    resumed = distilling(tiny, teacher(other, "db", "kg"))
    resumed.load_state(stopped.state())
    through.update(batch)
    resumed.update(batch)
    assert all(torch.equal(value, weights(resumed)[key]) for key, value in weights(through).items())


def test_a_teacher_with_another_tokenizer_is_refused(tiny: Path, tmp_path: Path) -> None:
    policy, apart = tmp_path / "policy", tmp_path / "apart"
    for path, vocabulary in ((policy, {"a": 0, "b": 1}), (apart, {"a": 1, "b": 0})):
        shutil.copytree(tiny, path)
        Tokenizer(models.BPE(vocab=vocabulary, merges=[])).save(str(path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r'teacher "one": the tokenizer of .* 2 tokens differ'):
        check_tokenizer("one", apart, policy)
    again = (policy / "tokenizer.json").read_text()
    (apart / "tokenizer.json").write_text(again + "\n")  # another file, the same tokens
    check_tokenizer("one", apart, policy)


def test_an_adapter_without_a_tokenizer_has_that_of_its_base(tmp_path: Path) -> None:
    base, policy, adapter = (tmp_path / name for name in ("base", "policy", "adapter"))
    for path, vocabulary in ((base, {"a": 0, "b": 1}), (policy, {"a": 1, "b": 0})):
        path.mkdir()
        (path / "config.json").write_text("{}")
        Tokenizer(models.BPE(vocab=vocabulary, merges=[])).save(str(path / "tokenizer.json"))
    adapter.mkdir()
    names_base = json.dumps({"base_model_name_or_path": str(base)})
    (adapter / "adapter_config.json").write_text(names_base)
    check_tokenizer("one", adapter, base)
    with pytest.raises(ConfigError, match=f"the tokenizer of {base} is not .* 2 tokens differ"):
        check_tokenizer("one", adapter, policy)
