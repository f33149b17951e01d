from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch_device import DEVICE
from transformers import AutoModelForCausalLM

from agentrl.checkpoints import directories
from agentrl.checkpoints.manifest import ADAPTER
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.errors import CheckpointError, ConfigError
from agentrl.core.trajectory import Trajectory
from agentrl.serving.local.adapter_sum import merge_adapter
from agentrl.trainer.algorithm.presets import Settings, resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.files.export import export
from agentrl.trainer.model.trainable_model import ADAPTER_WEIGHTS
from agentrl.trainer.snapshots.snapshots import State

LORA = Lora(rank=4)
SETTINGS = resolve_settings(Trainer(learning_rate=1e-2, task_norm_min_tokens=8, lora=LORA))
NEAR = {"float32": 1e-5, "bfloat16": 0.05}
IDS = torch.arange(40, device=DEVICE)[None] % 96
auto: Any = AutoModelForCausalLM


@pytest.fixture
def batch(make_trajectory: Callable[..., Trajectory]) -> Batch:
    members = tuple(
        make_trajectory(
            [(3, 7), (9, 12 + 2 * n)], 14 + 2 * n, reward=float(n % 2), logprobs=None, seed=n
        )
        for n in range(6)
    )
    return assemble_batch([TrainableGroup("g", "db", members)], SETTINGS)


def learner(tiny: Path, chosen: Settings = SETTINGS, dtype: str = "float32") -> TorchLearner:
    return TorchLearner(tiny, chosen, Hardware(DEVICE, dtype=dtype))


def logprobs(model: Any) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits.float().log_softmax(-1)  # type: ignore[no-any-return]


def plain(path: Path) -> Any:
    return auto.from_pretrained(path).to(DEVICE)


def saved(one: TorchLearner, path: Path) -> Path:
    directories.publish(path, one.copy_weights(), checkpoint_id=path.name, version=1, parent=None)
    return path


def test_a_new_adapter_equals_its_base_and_trains_few_weights(tiny: Path) -> None:
    one = learner(tiny)
    assert torch.equal(logprobs(one._model), logprobs(plain(tiny)))
    names = one.state().tensors
    assert {n.split(".")[-3] for n in names if n.startswith("weights/")} == {"lora_A", "lora_B"}
    trained = sum(t.numel() for n, t in names.items() if n.startswith("weights/"))
    per_layer = (32 + 32) + 2 * (32 + 16) + (32 + 32) + 3 * (32 + 64)  # q, k and v, o, mlp
    assert trained == 2 * 4 * per_layer


def test_the_adapter_in_peft_and_merged_says_what_the_trainer_says(
    tiny: Path, batch: Batch, tmp_path: Path
) -> None:
    from peft import PeftModel

    one = learner(tiny)
    for _ in range(4):
        assert not one.update(batch).skipped
    expected = logprobs(one._model)
    assert (expected - logprobs(plain(tiny))).abs().max() > 0.05
    path = saved(one, tmp_path / "c1")
    adapted = PeftModel.from_pretrained(plain(tiny), path)
    assert (logprobs(adapted) - expected).abs().max() < 1e-4
    export(path, tmp_path / "merged", merge_adapter)
    assert (logprobs(plain(tmp_path / "merged")) - expected).abs().max() < 1e-4
    assert (tmp_path / "merged" / "tokenizer.json").exists()


def test_an_adapters_directory_names_the_first_checkpoint_by_its_absolute_path(
    tiny: Path, tmp_path: Path
) -> None:
    path = saved(learner(tiny), tmp_path / "c1")
    config = msgspec.json.decode((path / ADAPTER).read_bytes())
    assert config["base_model_name_or_path"] == str(tiny.resolve())
    assert (config["r"], config["lora_alpha"]) == (4, 16.0)
    names = {file.name for file in path.iterdir()}
    assert names == {
        *(ADAPTER, ADAPTER_WEIGHTS, "manifest.json", "tokenizer.json", "chat_template.jinja")
    }


def test_only_the_adapter_moves(tiny: Path, batch: Batch) -> None:
    one = learner(tiny)
    frozen = {n: p.clone() for n, p in one._model.named_parameters() if not p.requires_grad}
    before = one.state().tensors
    one.update(batch)
    after = one.state().tensors
    assert any(not torch.equal(before[name], after[name]) for name in before if "lora_B" in name)
    now = dict(one._model.named_parameters())
    assert frozen
    assert all(torch.equal(value, now[name]) for name, value in frozen.items())


def test_a_snapshot_of_whole_weights_does_not_fit_an_adapter(tiny: Path) -> None:
    whole = learner(tiny, replace(SETTINGS, lora=Lora()))
    with pytest.raises(CheckpointError, match="does not fit the model"):
        learner(tiny).load_state(whole.state())


def test_a_snapshot_under_another_alpha_is_refused(tiny: Path, batch: Batch) -> None:
    """The same weights would be another policy."""
    one = learner(tiny)
    one.update(batch)
    state = one.state()
    other = learner(tiny, replace(SETTINGS, lora=Lora(rank=4, alpha=64.0)))
    with pytest.raises(CheckpointError, match=r"adapter has alpha 16, trainer\.lora\.alpha is 64"):
        other.load_state(state)
    again = learner(tiny)
    again.load_state(state)
    assert torch.equal(logprobs(again._model), logprobs(one._model))
    earlier = {name: each for name, each in state.values.items() if name != "lora_alpha"}
    learner(tiny).load_state(State(state.tensors, earlier))


def test_the_reference_is_the_model_without_its_adapter(tiny: Path, batch: Batch) -> None:
    """KL is zero before the first update, the same as with whole weights after it."""
    chosen = replace(SETTINGS, kl_weight=0.5)
    one = learner(tiny, chosen)
    assert one.update(batch).values["kl"] == pytest.approx(0.0, abs=1e-9)
    current = logprobs(one._model)
    value = one.update(batch).values["kl"]
    base = logprobs(plain(tiny))
    assert value > 1e-4
    with one._tuned.reference() as first:
        assert torch.equal(logprobs(first), base)
    assert not torch.equal(current, base)
    expected = _k3_by_hand(tiny, chosen, batch)
    assert value == pytest.approx(expected, rel=1e-4)


def _k3_by_hand(tiny: Path, chosen: Settings, batch: Batch) -> float:
    one = learner(tiny, chosen)
    one.update(batch)
    base = plain(tiny)
    total, start = 0.0, 0
    for length in batch.lengths:
        tokens = torch.from_numpy(batch.tokens[start : start + length]).to(DEVICE)
        kept = torch.from_numpy(batch.loss_mask[start + 1 : start + length]).to(DEVICE)
        both = []
        for model in (one._model, base):
            with torch.no_grad():
                every = model(tokens[None]).logits[0, :-1].log_softmax(-1)
            both.append(every.gather(1, tokens[1:, None])[:, 0][kept].double())
        difference = both[1] - both[0]
        total += float((difference.exp() - difference - 1).sum())
        start += length
    return total / int(batch.loss_mask.sum())


@pytest.mark.parametrize(
    ("targets", "named"),
    [(["q_proj", "c_attn"], "c_attn"), (["lm_head"], "lm_head"), (["embed_tokens"], "embed")],
)
def test_a_target_that_no_module_fits_is_named(tiny: Path, targets: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"trainer\.lora\.targets: Qwen3.*{named}") as caught:
        learner(tiny, replace(SETTINGS, lora=Lora(rank=2, targets=targets)))
    assert "q_proj" in caught.value.hint


def test_no_target_at_all_is_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.lora\.targets is empty"):
        learner(tiny, replace(SETTINGS, lora=Lora(rank=2, targets=[])))


@pytest.mark.parametrize("rank", [0, 4], ids=["whole", "adapter"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_probe_is_what_the_saved_weights_say(
    tiny: Path, batch: Batch, tmp_path: Path, rank: int, dtype: str
) -> None:
    from peft import PeftModel

    one = learner(tiny, replace(SETTINGS, lora=Lora(rank=rank)), dtype)
    first = one.probe()
    one.update(batch)
    found = one.probe()
    assert found.token_ids == first.token_ids
    assert len(found.logprobs) == len(found.token_ids) - 1 > 40
    path = saved(one, tmp_path / "c1")
    kind = getattr(torch, dtype)
    model = auto.from_pretrained(tiny if rank else path, dtype=kind)
    if rank:
        weights = load_file(path / ADAPTER_WEIGHTS)
        assert {value.dtype for value in weights.values()} == {kind}
        model = PeftModel.from_pretrained(model, path, autocast_adapter_dtype=False)
    ids = torch.tensor([found.token_ids], device=DEVICE)
    with torch.no_grad():
        every = model.to(DEVICE)(ids).logits[0, :-1].float().log_softmax(-1)
    expected = every.gather(1, ids[0, 1:, None])[:, 0].cpu().numpy()
    assert np.abs(expected - found.logprobs).max() < NEAR[dtype]
    assert np.abs(np.array(first.logprobs) - found.logprobs).max() > 0.05
