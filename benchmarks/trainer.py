"""The trainer's speed, as ratios within one run.

    python benchmarks/trainer.py [--sizes 1M 5M] [--repeats 5] [--oracles PYTHON] [--no-overlap]
        [--json]

vs_bare        tokens a second of a whole update over those of a bare forward, backward and AdamW
               on the same tokens without padding, cross-entropy at every one of them
vs_padded      over those of the same bare loop with padding: eight trajectories a pass, each
               filled up to the longest of them
vs_trl         over those of TRL's GRPO step on the same trajectories, as TRL ships: with gradient
               checkpointing, its default (needs what `make test-oracles` installs)
vs_trl_plain   over those of the same step without it
vs_trl_sampled over those of the step as it ships where vLLM sampled: TRL first computes its own
               log-probabilities of the trajectories
async_vs_sync, of_ideal: of the whole system, benchmarks/overlap.py; `--no-overlap`: not measured

64 trajectories of 64 to 512 tokens, drawn once. Each is measured in turn with the others, in
seconds of processor time of one thread, so that a busy machine matters less; medians of the
repeats. Of several sizes the last line has the worst ratio.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bare_loop import bare_update
from random_models import PROMPT, SHAPES, make_model, ragged_batch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agentrl.core.config.sections import Trainer
from agentrl.trainer.algorithm.presets import Settings, resolve_settings
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.loading import load_model

ROOT = Path(__file__).parents[1]
AT_ONCE, PADDING = 8, -100
SETTINGS = resolve_settings(Trainer())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=["1M", "5M"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--oracles", type=Path, default=ROOT / ".venv-oracles/bin/python")
    parser.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    chosen = parser.parse_args()
    found: dict[str, float] = {}
    for size in chosen.sizes:
        with tempfile.TemporaryDirectory() as folder:
            own = compared(size, Path(folder), chosen)
        for name, value in own.items():
            print(f"{size:>5}  {name:>20}  {value:,}", flush=True)
            if name.startswith("vs_"):
                found[name] = min(value, found.get(name, value))
    if chosen.overlap:
        found |= overlap()
    print(json.dumps(found) if chosen.json else found)


def compared(size: str, folder: Path, chosen: argparse.Namespace) -> dict[str, float]:
    """Ratios and speeds of one size of model."""
    make_model(size, folder / "model")
    batch = ragged_batch(SETTINGS)
    steps: dict[str, Callable[[], float]] = {
        "update": update(folder / "model", batch, SETTINGS),
        "bare": bare(folder / "model", batch, SETTINGS),
        "padded": padded(folder / "model", batch, SETTINGS),
    }
    if chosen.oracles.exists():
        steps |= {
            "trl": trl(chosen.oracles, folder, batch, "shipped"),
            "trl_plain": trl(chosen.oracles, folder, batch, "plain"),
            "trl_sampled": trl(chosen.oracles, folder, batch, "sampled"),
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


def overlap() -> dict[str, float]:
    """What benchmarks/overlap.py finds, in processes of its own."""
    script = Path(__file__).parent / "overlap.py"
    run = subprocess.run(
        [sys.executable, str(script), "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    print(run.stdout, end="", flush=True)
    figures = json.loads(run.stdout.splitlines()[-1])
    return {name: figures[name] for name in ("async_vs_sync", "of_ideal")}


def update(path: Path, batch: Batch, chosen: Settings) -> Callable[[], float]:
    """One update as the trainer makes it, metrics and all."""
    learner = TorchLearner(path, chosen, Hardware())
    return lambda: _seconds(lambda: learner.update(batch))


def bare(path: Path, batch: Batch, chosen: Settings) -> Callable[[], float]:
    """What any trainer must at least compute: cross-entropy of every token that is fed."""
    step = bare_update(path, batch, chosen, Hardware(), every_token=True)
    return lambda: _seconds(step)


def padded(path: Path, batch: Batch, chosen: Settings) -> Callable[[], float]:
    """The bare loop as it is without packing; transformers masks the padding."""
    model = load_model(path, torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.learning_rate, fused=True)
    rows = torch.split(torch.from_numpy(batch.tokens), batch.lengths.tolist())
    passes = [
        pad_sequence(list(rows[n : n + AT_ONCE]), batch_first=True, padding_value=PADDING)
        for n in range(0, len(rows), AT_ONCE)
    ]
    return lambda: _seconds(lambda: _padded_update(model, optimizer, passes))


def _padded_update(model: Any, optimizer: torch.optim.Optimizer, passes: list[Tensor]) -> None:
    for tokens in passes:
        real = tokens != PADDING
        logits = model(tokens.clamp_min(0), attention_mask=real.long(), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PADDING
        )
        torch.autograd.backward(loss)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def trl(python: Path, folder: Path, batch: Batch, how: str) -> Callable[[], float]:
    """TRL's own step in a process of its own, which makes one at each line it reads."""
    np.savez(
        folder / "batch.npz",
        tokens=batch.tokens,
        mask=batch.loss_mask,
        lengths=batch.lengths,
        advantages=batch.advantages[np.cumsum(batch.lengths) - 1],
        prompt=PROMPT,
    )
    script = Path(__file__).parent / "trl_step.py"
    command = [str(python), str(script), str(folder / "model"), str(folder / "batch.npz"), how]
    child = subprocess.Popen(
        command,
        cwd=folder,
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


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
