import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.trainer.model.malloc_tuning import map_large_blocks

PROGRAM = """
import sys
from pathlib import Path

import torch
from torch import nn

from agentrl.trainer.model.malloc_tuning import map_large_blocks
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


@pytest.mark.slow
@pytest.mark.skipif(not map_large_blocks(), reason="not glibc")
def test_logits_in_parts_take_the_memory_of_a_few_parts() -> None:
    """All logits have 256 MiB, a part 16 MiB."""
    peaks = {}
    for how in ("mapped", "kept"):
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, how]
        root = Path(__file__).parents[3]
        told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
        peaks[how] = int(told.stdout) // 1024
    assert peaks["mapped"] < 224, peaks
    assert peaks["mapped"] < peaks["kept"], peaks
