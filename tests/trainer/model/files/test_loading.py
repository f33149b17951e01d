import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch_device import DEVICE
from transformers import AutoModelForCausalLM, GraniteConfig

from agentrl.core.errors import CheckpointError
from agentrl.trainer.model.files.loading import load_model, load_structure

PLACE = torch.device(DEVICE)


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def test_a_model_that_scales_its_logits_after_the_head_is_refused(tmp_path: Path) -> None:
    config = GraniteConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        logits_scaling=8.0,
        initializer_range=0.5,
    )
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="changes its logits after the head"):
        load_model(tmp_path, PLACE)


def test_an_absent_weight_is_named_and_never_drawn_at_random(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"the weight model\.norm\.weight is missing"):
        load_model(copy, PLACE)


def test_sampling_defaults_that_contradict_each_other_do_not_keep_a_model_from_being_saved(
    copy: Path, tmp_path: Path
) -> None:
    defaults = {"temperature": 0.9, "do_sample": False, "eos_token_id": [2, 5]}
    (copy / "generation_config.json").write_text(json.dumps(defaults))
    model = load_model(copy, PLACE)
    model.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert saved["eos_token_id"] == [2, 5]
    assert "temperature" not in saved


def test_damaged_weights_are_one_clear_line(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError) as caught:
        load_model(copy, PLACE)
    assert str(copy) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_that_are_a_pickle_are_not_read(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    torch.save(weights, copy / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="safetensors"):
        load_model(copy, PLACE)


def test_dropout_is_off_and_weights_are_fp32(tiny: Path) -> None:
    model = load_model(tiny, PLACE)
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_structure_has_the_model_s_parameters_and_no_memory_for_them(tiny: Path) -> None:
    whole, structure = load_model(tiny, PLACE), load_structure(tiny, PLACE)
    shapes = [(name, each.shape, each.dtype) for name, each in whole.named_parameters()]
    assert [(n, each.shape, each.dtype) for n, each in structure.named_parameters()] == shapes
    assert {each.untyped_storage().nbytes() for each in structure.parameters()} == {4}
    head, words = structure.get_output_embeddings(), structure.get_input_embeddings()
    assert head.weight is words.weight
    buffers = {name: each.shape for name, each in whole.named_buffers()}
    assert {name: each.shape for name, each in structure.named_buffers()} == buffers
    assert not any(each.is_meta for each in structure.buffers())


def test_a_structure_without_a_configuration_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_structure(tmp_path / "absent", PLACE)
    assert "\n" not in str(caught.value)
