import re
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from huggingface_hub_server import serve_hub

from agentrl.cli.main import main
from agentrl.core.errors import ConfigError
from agentrl.ops.doctor import model_memory
from agentrl.ops.doctor.memory_items import GIB

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "model-memory.md"
COMMAND = "agentrl model memory > docs/model-memory.md"


def test_the_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == model_memory.page(), f"write it anew: {COMMAND}"


def test_numbers_grow_with_length_and_shrink_with_the_stage() -> None:
    rows = re.findall(r"^\| (\S+/\S+) \| [\d.]+ \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 26
    for _, cells in rows:
        table = [[int(n) for n in re.findall(r"\d+", cell)] for cell in cells.split("|")]
        for numbers in table:
            assert numbers == sorted(numbers)
        for columns in (table[:2], table[2:5], table[5:]):  # LoRA, full, vLLM
            for one, next_one in pairwise(columns):
                assert all(a >= b for a, b in zip(one, next_one, strict=True))


def test_a_number_is_that_of_a_sum_by_hand() -> None:
    """Llama 3.1 8B, vLLM, 32,768 tokens: weights, keys and values, work."""
    line = next(line for line in model_memory.page().splitlines() if "Llama-3.1-8B" in line)
    weights, kept = 2 * 8_030_261_248, 2 * 2 * 32 * 1024 * 32768
    expected = (weights + kept + GIB) / GIB
    assert line.split("|")[8].split("–")[-1].strip() == f"{expected:.0f}"


def test_a_directory_is_measured_like_a_published_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["agentrl", "model", "memory", str(ROOT / "models" / "tiny")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.count("| tiny | 0.00 |") == 1
    assert "| Qwen/Qwen3-4B | 4.02 |" in model_memory.of_model("hub:Qwen/Qwen3-4B")


def test_a_model_of_the_hub_that_is_not_known_is_fetched_without_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "models" / "tiny", tmp_path / "there")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with serve_hub(tmp_path / "there") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert "| owner/tiny | 0.00 |" in model_memory.of_model("hub:owner/tiny")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_model_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="no-such-model"):
        model_memory.of_model("no-such-model")
    with pytest.raises(ConfigError, match="hub:tiny is not a valid name"):
        model_memory.of_model("hub:tiny")
