import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import bfloat16, ops
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from agentrl.core.processes.malloc_tuning import map_large_blocks
from agentrl.core.processes.torch_environment import KERNEL_CACHES

PROGRAM = """
import sys
from pathlib import Path

import torch
from torch import nn

from agentrl.core.processes.malloc_tuning import map_large_blocks
from agentrl.trainer.model.token_scores import score_tokens

torch.set_num_threads(1)
if sys.argv[1] == "mapped":
    map_large_blocks()
rows, words = 4096, 2**14


def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


head = nn.Linear(8, words, bias=False)
hidden = torch.randn(rows, 8, requires_grad=True)
before = peak()
found, _ = score_tokens(head, hidden, torch.ones(rows), torch.zeros(rows).long(), 2**22 // words)
found.sum().backward()
print(peak() - before)
"""


LENGTHS = """
import gc
from pathlib import Path

import torch
from torch import nn

from agentrl.core.processes.malloc_tuning import release_unused


def resident_kib():
    gc.collect()
    release_unused()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


torch.set_num_threads(1)
layers = [nn.Linear(64, width, dtype=torch.bfloat16) for width in (64, 128, 192, 256)]


def train(lengths):
    for length in lengths:
        inputs = torch.randn(length, 64, dtype=torch.bfloat16, requires_grad=True)
        sum(layer(inputs).float().sum() for layer in layers).backward()


train(range(100, 110))
before = resident_kib()
train(range(200, 600))
print(resident_kib() - before)
"""


LOADED = """
import sys
from pathlib import Path

import torch

from agentrl.core.processes.malloc_tuning import release_unused
from agentrl.serving.local.networks import Networks
from agentrl.trainer.model.files.loading import load_model


def anonymous_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


torch.set_num_threads(1)
path = Path(sys.argv[2])
if sys.argv[1] == "trainer":
    model = load_model(path, torch.device("cpu"), torch.float32)
else:
    model = Networks("cpu", torch.float32).open(path)
before = anonymous_kib()
release_unused()
print(before - anonymous_kib())
"""


def _run_program(program: str, *arguments: str, environment: Mapping[str, str] = os.environ) -> int:
    """Run a program that prints a number of KiB; return MiB."""
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    root = Path(__file__).parents[3]
    told = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=root, env=environment
    )
    return int(told.stdout) // 1024


@pytest.mark.slow
@pytest.mark.skipif(not map_large_blocks(), reason="not glibc")
def test_logits_in_parts_take_the_memory_of_a_few_parts() -> None:
    """All logits have 256 MiB, a part 16 MiB."""
    peaks = {how: _run_program(PROGRAM, how) for how in ("mapped", "kept")}
    assert peaks["mapped"] < 224, peaks
    assert peaks["mapped"] < peaks["kept"], peaks


@pytest.mark.slow
@pytest.mark.skipif(
    not (map_large_blocks() and ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="not glibc, or no bfloat16 in oneDNN",
)
def test_kernels_of_former_lengths_are_dropped() -> None:
    """Trajectories of 400 lengths: each has kernels of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in KERNEL_CACHES}
    growth_unbounded = _run_program(LENGTHS, environment=environment)
    growth_bounded = _run_program(LENGTHS, environment=environment | KERNEL_CACHES)
    assert growth_bounded < growth_unbounded / 2, (growth_bounded, growth_unbounded)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts in bfloat16; in float32 their weights have 48 MiB."""
    path = tmp_path_factory.mktemp("experts")
    shape = {"hidden_size": 256, "num_hidden_layers": 4, "vocab_size": 64, "num_experts": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
    described: Any = Qwen3MoeConfig(**shape, **heads, moe_intermediate_size=128)
    model: Any = AutoModelForCausalLM.from_config(described, dtype=bfloat16)
    model.save_pretrained(path)
    return path


@pytest.mark.slow
@pytest.mark.skipif(not map_large_blocks(), reason="not glibc")
@pytest.mark.parametrize("where", ["trainer", "policy server"])
def test_a_loaded_model_leaves_no_freed_copy_in_memory(experts: Path, where: str) -> None:
    assert _run_program(LOADED, where, str(experts)) < 4
