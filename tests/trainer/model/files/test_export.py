import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.checkpoints import directories
from agentrl.core.errors import CheckpointError
from agentrl.ops.warmstart.start_adapter import add_in_float64
from agentrl.serving.local.adapter_sum import merge_adapter
from agentrl.trainer.model.files.export import Merge, export
from agentrl.trainer.model.files.loading import copy_tokenizer, load_model

CPU = torch.device("cpu")
PROMPT = torch.arange(6)[None]


def _publish(source: Path, target: Path) -> None:
    def write(directory: Path) -> None:
        load_model(source, CPU).save_pretrained(directory)
        copy_tokenizer(source, directory)

    directories.publish(target, write, checkpoint_id="c0", version=0, parent=None)


def test_an_exported_checkpoint_loads_in_plain_transformers(tiny: Path, tmp_path: Path) -> None:
    _publish(tiny, tmp_path / "c0")
    export(tmp_path / "c0", tmp_path / "out")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(exported(PROMPT).logits, load_model(tiny, CPU)(PROMPT).logits)
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("merge", [merge_adapter, partial(merge_adapter, merge=add_in_float64)])
def test_a_lora_checkpoint_is_merged_into_its_base(
    tiny: Path, tmp_path: Path, merge: Merge
) -> None:
    from peft import LoraConfig, get_peft_model

    base = Path(shutil.copytree(tiny, tmp_path / "base"))
    (base / "generation_config.json").write_text('{"temperature": 0.9}')  # without do_sample
    model = get_peft_model(
        load_model(base, CPU),
        LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
    )
    with torch.no_grad():
        expected = model(PROMPT).logits
    directories.publish(
        tmp_path / "c1",
        lambda directory: model.save_pretrained(str(directory)),
        checkpoint_id="c1",
        version=1,
        parent=None,
    )
    export(tmp_path / "c1", tmp_path / "merged", merge)
    merged = load_model(tmp_path / "merged", CPU)
    assert torch.allclose(merged(PROMPT).logits, expected, atol=1e-5)
    assert (tmp_path / "merged" / "chat_template.jinja").exists()
    assert not torch.allclose(load_model(tiny, CPU)(PROMPT).logits, expected, atol=1e-3)


def test_a_damaged_checkpoint_or_an_existing_target_is_refused(tiny: Path, tmp_path: Path) -> None:
    _publish(tiny, tmp_path / "c0")
    (tmp_path / "there").mkdir()
    with pytest.raises(CheckpointError, match="exists already"):
        export(tmp_path / "c0", tmp_path / "there")
    (tmp_path / "c0" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        export(tmp_path / "c0", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c0", "there"]
