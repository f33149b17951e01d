"""GGUF files that transformers reads wrongly, or not at all."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers

from agentrl.core.errors import CheckpointError
from agentrl.trainer.model.files.convert_gguf import convert_gguf

gguf = pytest.importorskip("gguf", reason="pip install 'agentrl-system[gguf]'")

HIDDEN, INNER, HEADS, WORDS = 32, 64, 4, 300
LAYER = {
    "attn_norm": (HIDDEN,),
    "ffn_norm": (HIDDEN,),
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HIDDEN // 2, HIDDEN),
    "attn_v": (HIDDEN // 2, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}


def write_gguf(
    file: Path, layers: Sequence[int] = (0, 1), rope: str = "", split: str = "gpt-2"
) -> Path:
    """Write a llama of two layers. `layers`: whose weights the file holds. `rope`: its scaling.

    `split`: how its tokenizer splits text.
    """
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(WORDS)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["Ġt", "<|end|>", "Ġ1", "12", *letters]
    words += [f"<pad{n}>" for n in range(WORDS - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(words)
    writer.add_token_types([1, 3] + [1] * (WORDS - 2))
    writer.add_token_merges(["Ġ t", "1 2", "Ġ 1"])
    writer.add_eos_token_id(1)
    if rope == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)
    if rope == "frequencies":
        writer.add_tensor("rope_freqs.weight", np.ones(HIDDEN // HEADS // 2, np.float32))
    shapes = {f"blk.{n}.{name}": shape for n in layers for name, shape in LAYER.items()}
    shapes |= {"token_embd": (WORDS, HIDDEN), "output_norm": (HIDDEN,)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.full(shape, 0.5, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_whole_file_is_converted(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "whole.gguf")
    assert convert_gguf(file, tmp_path / "out", torch.float32) == 2 * 9_280 + 301 * HIDDEN
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("split", "pieces"),
    [
        ("gpt-2", ["Ġt", "Ġ", "12"]),
        ("smollm", ["Ġt", "Ġ", "1", "2"]),
        ("qwen2", ["Ġt", "Ġ", "1", "2"]),
    ],
)
def test_text_is_split_as_the_file_says(tmp_path: Path, split: str, pieces: list[str]) -> None:
    convert_gguf(write_gguf(tmp_path / "a.gguf", split=split), tmp_path / "out", torch.float32)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.encode(" t 12").tokens == pieces


def test_a_rule_to_split_text_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "a.gguf", split="falcon")
    with pytest.raises(CheckpointError, match="splits text as falcon, which"):
        convert_gguf(file, tmp_path / "out", torch.float32)


def test_a_file_without_all_weights_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model-00001-of-00002.gguf", layers=[0])
    with pytest.raises(CheckpointError, match=r"the weight model\.layers\.1\.\S+ is miss") as error:
        convert_gguf(file, tmp_path / "out", torch.float32)
    assert "split" in (error.value.hint or "")


@pytest.mark.parametrize("rope", ["linear", "frequencies"])
def test_scaled_rotary_positions_that_transformers_drops_are_refused(
    tmp_path: Path, rope: str
) -> None:
    file = write_gguf(tmp_path / "scaled.gguf", rope=rope)
    with pytest.raises(CheckpointError, match="rotary positions") as error:
        convert_gguf(file, tmp_path / "out", torch.float32)
    assert "original" in (error.value.hint or "")


def test_a_file_cut_within_its_header_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "whole.gguf")
    file.write_bytes(file.read_bytes()[:700])
    with pytest.raises(CheckpointError, match="transformers cannot read it"):
        convert_gguf(file, tmp_path / "out", torch.float32)
