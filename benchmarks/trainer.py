"""The trainer's speed, as ratios within one run.

    python benchmarks/trainer.py [--sizes 1M 5M] [--repeats 5] [--oracles PYTHON]
        [--against bare padded trl apart] [--groups 8] [--shared 0] [--device cpu]
    python benchmarks/trainer.py --model models/smollm2 --dtype bfloat16 --groups 2

vs_bare        tokens a second of a whole update over those of a bare forward, backward and AdamW
               on the same tokens without padding, cross-entropy at every one of them
vs_padded      over those of the same bare loop with padding: eight trajectories a pass, each
               filled up to the longest of them
vs_trl         over those of TRL's GRPO step on the same trajectories, as TRL ships: with gradient
               checkpointing, its default (needs what `make test-oracles` installs)
vs_trl_plain   over those of the same step without it
vs_trl_sampled over those of the step as it ships where vLLM sampled: TRL first computes its own
               log-probabilities of the trajectories
vs_apart       over those of the same update where each trajectory of a group begins with a token of
               its own, so that none shares its prompt (with `--shared`, tokens of the prompt that
               a group has in common)

`--groups` times 8 trajectories of 64 to 512 tokens, drawn once. Each is measured in turn with the
others, in seconds of processor time of one thread, so that a busy machine matters less (on a GPU in
seconds of wall clock); medians of the repeats. Of several sizes the last line has the worst ratio.
`--model`: a transformers directory instead of random weights. TRL's step is measured in float32 on
the CPU only.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.bare_loop import bare_update
from helpers.random_models import PROMPT, SHAPES, make_model, ragged_batch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agentrl.core.config.sections.training import Trainer
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.files.loading import load_model

ROOT = Path(__file__).parents[1]
AT_ONCE, PADDING = 8, -100
AGAINST = ("bare", "padded", "trl", "apart")
TRL = {"trl": "shipped", "trl_plain": "plain", "trl_sampled": "sampled"}
SETTINGS = resolve_settings(Trainer())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=["1M", "5M"])
    parser.add_argument("--model", type=Path, help="a transformers directory, instead of --sizes")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--against", nargs="+", choices=AGAINST, default=list(AGAINST))
    parser.add_argument("--groups", type=int, default=8, help="of 8 trajectories")
    parser.add_argument("--shared", type=int, default=0, help="tokens with which groups begin")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--oracles", type=Path, default=ROOT / ".venv-oracles/bin/python")
    chosen = parser.parse_args()
    found: dict[str, float] = {}
    for size in [chosen.model.name] if chosen.model else chosen.sizes:
        with tempfile.TemporaryDirectory() as folder:
            own = compared(size, Path(folder), chosen)
        print(json.dumps({"size": size} | own), flush=True)
        for name, value in own.items():
            if name.startswith("vs_"):
                found[name] = min(value, found.get(name, value))
    print(json.dumps(found))


def compared(size: str, folder: Path, chosen: argparse.Namespace) -> dict[str, float]:
    """Ratios and speeds of one model."""
    path, hardware = chosen.model or folder / "model", Hardware(chosen.device, chosen.dtype)
    if not chosen.model:
        make_model(size, path)
    batch = ragged_batch(SETTINGS, chosen.groups, chosen.shared)
    steps = {"update": update(path, batch, hardware)}
    if "bare" in chosen.against:
        steps["bare"] = bare(path, batch, hardware)
    if "padded" in chosen.against:
        steps["padded"] = padded(path, batch, hardware)
    if "apart" in chosen.against and chosen.shared:
        steps["apart"] = update(path, apart(batch), hardware)
    if "trl" in chosen.against and hardware == Hardware() and chosen.oracles.exists():
        steps |= {
            name: trl((chosen.oracles, path, folder / "batch.npz"), batch, how)
            for name, how in TRL.items()
        }
    rows = [{name: step() for name, step in steps.items()} for _ in range(chosen.repeats + 1)][1:]
    tokens = batch.tokens.size
    speeds = {
        f"{name}_tokens_per_s": round(tokens / statistics.median(row[name] for row in rows))
        for name in steps
    }
    ratios = {
        f"vs_{name}": round(statistics.median(row[name] / row["update"] for row in rows), 3)
        for name in steps
        if name != "update"
    }
    return speeds | ratios


def update(path: Path, batch: Batch, hardware: Hardware) -> Callable[[], float]:
    """One update as the trainer makes it, metrics and all."""
    learner = TorchLearner(path, SETTINGS, hardware)
    return lambda: _seconds(lambda: learner.update(batch), hardware)


def apart(batch: Batch) -> Batch:
    """The same batch, but no two trajectories begin alike."""
    tokens = batch.tokens.copy()
    tokens[np.cumsum(batch.lengths) - batch.lengths] = np.arange(batch.lengths.size)
    return replace(batch, tokens=tokens)


def bare(path: Path, batch: Batch, hardware: Hardware) -> Callable[[], float]:
    """What any trainer must at least compute: cross-entropy of every token that is fed."""
    step = bare_update(path, batch, SETTINGS, hardware, every_token=True)
    return lambda: _seconds(step, hardware)


def padded(path: Path, batch: Batch, hardware: Hardware) -> Callable[[], float]:
    """The bare loop as it is without packing; transformers masks the padding."""
    model = load_model(path, torch.device(hardware.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS.learning_rate, fused=True)
    rows = torch.split(torch.from_numpy(batch.tokens), batch.lengths.tolist())
    passes = [
        pad_sequence(list(rows[n : n + AT_ONCE]), batch_first=True, padding_value=PADDING)
        for n in range(0, len(rows), AT_ONCE)
    ]

    def step() -> None:
        for tokens in passes:
            torch.autograd.backward(_padded_loss(model, tokens.to(model.device), hardware))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return lambda: _seconds(step, hardware)


def _padded_loss(model: Any, tokens: Tensor, hardware: Hardware) -> Tensor:
    real, dtype = tokens != PADDING, getattr(torch, hardware.dtype)
    with torch.autocast(tokens.device.type, dtype=dtype, enabled=dtype != torch.float32):
        logits = model(tokens.clamp_min(0), attention_mask=real.long(), use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), ignore_index=PADDING
    )


def trl(paths: tuple[Path, Path, Path], batch: Batch, how: str) -> Callable[[], float]:
    """TRL's own step in a process of its own, which makes one at each line it reads.

    `paths`: an interpreter that has TRL, the model, and where the batch is written.
    """
    python, model, file = paths
    np.savez(
        file,
        tokens=batch.tokens,
        mask=batch.loss_mask,
        lengths=batch.lengths,
        advantages=batch.advantages[np.cumsum(batch.lengths) - 1],
        prompt=PROMPT,
    )
    script = Path(__file__).parent / "trl_step.py"
    command = [str(python), str(script), str(model.absolute()), str(file), how]
    child = subprocess.Popen(
        command,
        cwd=file.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def step() -> float:
        if child.stdin is not None and child.stdout is not None:
            child.stdin.write("step\n")
            child.stdin.flush()
            for line in child.stdout:
                if line.startswith("seconds "):
                    return float(line.split()[1])
        raise SystemExit(f"TRL ended with {child.wait()}: {' '.join(command)}")

    return step


def _seconds(work: Callable[[], object], hardware: Hardware) -> float:
    if hardware.device == "cpu":
        began = time.process_time()
        work()
        return time.process_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
