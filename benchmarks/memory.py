"""How far the memory plan of `agentrl doctor` is off: peaks of trainer and local engine.

    python benchmarks/memory.py [--sizes 1M 25M 100M] [--arms trainer lora bf16 engine]
        [--updates 2] [--device cpu]

Every arm runs in a process of its own with a random Qwen3 of that size. The trainer makes updates
of six trajectories of 256 to 512 tokens, saves a checkpoint, makes one more update and saves a
snapshot; the engine serves two policies and their next one to 32 conversations of three turns each.
Peaks are the kernel's VmHWM; on a GPU what torch reserved there, and the plan's allowance for CUDA
is left out.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.processes.torch_environment import KERNEL_CACHES
from agentrl.ops.configuration import model_spec
from agentrl.ops.doctor import memory, memory_items
from agentrl.ops.doctor.machine import Machine
from agentrl.trainer.batch import Batch

SIZES = {  # hidden, layers, inner, heads, heads of keys, their width, vocabulary
    "1M": (128, 4, 320, 4, 2, 32, 768),
    "25M": (384, 8, 1152, 6, 2, 64, 16000),
    "100M": (640, 12, 1920, 10, 2, 64, 64000),
}
ARMS = {  # dtype, rank, padded tokens of a micro-batch
    "trainer": ("float32", 0, 1536),
    "lora": ("float32", 16, 1536),
    "bf16": ("bfloat16", 0, 512),
    "engine": ("float32", 0, 1536),
}
TOKENS, MEMBERS, CONVERSATIONS, TURNS = 512, 6, 32, 3


def configured(model: Path, arm: str, device: str) -> Config:
    """The run whose plan is measured."""
    dtype, rank, micro = ARMS[arm]
    return config_loading.loads(
        f'tasks.dbbench = {{}}\nmodel.path = "{model}"\nmodel.dtype = "{dtype}"\n'
        f'model.device = "{device}"\n'
        f"trainer.micro_batch_tokens = {micro}\ntrainer.lora.rank = {rank}\n"
        f"sampling.max_tokens = {TOKENS}\nworker.concurrency = {CONVERSATIONS}\n"
        '[[policy]]\nname = "p"\ntracks = ["current", "lagged(4)"]\ncache_tokens = 16384\n'
    )


def make(size: str, folder: Path) -> Path:
    """A random model."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    hidden, layers, inner, heads, key_heads, width, vocabulary = SIZES[size]
    torch.manual_seed(0)
    described = Qwen3Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=width,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
    )
    auto: Any = AutoModelForCausalLM
    auto.from_config(described).save_pretrained(folder)
    return folder


def draw_batch(drawn: np.random.Generator, vocabulary: int) -> Batch:
    """Draw six trajectories of different lengths, the first of the full length."""
    lengths = np.append(TOKENS, drawn.integers(TOKENS // 2, TOKENS + 1, MEMBERS - 1))
    count = int(lengths.sum())
    mask = np.arange(count) % 60 < 40
    mask[np.cumsum(lengths) - lengths] = False
    return Batch(
        tokens=drawn.integers(0, vocabulary, count),
        loss_mask=mask,
        behaviour=np.full(count, -5.0, np.float32),
        temperature=np.ones(count, np.float32),
        advantages=drawn.standard_normal(count).astype(np.float32),
        fresh=mask,
        shares=(mask / mask.sum()).astype(np.float32),
        lengths=lengths,
        task_ids=np.zeros(MEMBERS, np.int64),
        tasks=("task",),
        rewards=np.zeros(MEMBERS, np.float32),
        successes=np.zeros(MEMBERS, np.bool_),
        unnormalised=frozenset(),
    )


def train(config: Config, scratch: Path, updates: int) -> None:
    """Make updates, save a checkpoint, make one more update and save a snapshot."""
    from agentrl.trainer.algorithm.presets import resolve_settings
    from agentrl.trainer.engines.learner import Hardware
    from agentrl.trainer.engines.torch_learner import TorchLearner
    from agentrl.trainer.snapshots import snapshots

    model = Path(config.model.path)
    hardware = Hardware.from_config(config.model, config.trainer)
    learner = TorchLearner(model, resolve_settings(config.trainer), hardware)
    drawn, vocabulary = np.random.default_rng(0), model_spec.read_spec(model).vocabulary
    for _ in range(updates):
        learner.update(draw_batch(drawn, vocabulary))
    (scratch / "checkpoint").mkdir()
    learner.probe()
    learner.copy_weights()(scratch / "checkpoint")
    state = learner.state()
    learner.update(draw_batch(drawn, vocabulary))
    snapshots.save(scratch / "snapshot", state, checkpoint_id="c", version=1)


def serve(config: Config, scratch: Path) -> None:
    """Two policies at work, then their next one beside them."""
    import shutil

    import torch

    from agentrl.serving.engine_api import Request
    from agentrl.serving.local.engine import LocalEngine

    torch.set_num_threads(1)  # as the policy server, whose engine takes its thread's number
    engine = LocalEngine(
        config.model.device, config.model.dtype, 128, config.policy[0].cache_tokens
    )
    for name in "abc":
        shutil.copytree(config.model.path, scratch / name)
        engine.load(name, scratch / name)
        drawn = random.Random(0)
        prompts = [[drawn.randrange(700) for _ in range(100)] for _ in range(CONVERSATIONS)]
        for _ in range(TURNS):
            asked = [
                engine.submit(Request(name, prompt, 40, session=f"{name}{number}"))
                for number, prompt in enumerate(prompts)
            ]
            for prompt, future in zip(prompts, asked, strict=True):
                prompt.extend(future.result().token_ids)
                prompt.extend(drawn.randrange(700) for _ in range(60))
    engine.close()


def measure_peak(arm: str, model: Path, device: str, updates: int) -> int:
    """Run the arm; return the peak bytes of this process, or on the card."""
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        config = configured(model, arm, device)
        if arm == "engine":
            serve(config, Path(scratch))
        else:
            train(config, Path(scratch), updates)
    if device != "cpu":
        return torch.cuda.max_memory_reserved()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def plan_memory(arm: str, model: Path, device: str) -> int:
    """Return the bytes that the plan counts for the process of an arm."""
    process, config = "policy p" if arm == "engine" else "trainer", configured(model, arm, device)
    place = memory_items.device_of(config)
    found = memory.memory_items(config, model_spec.read_spec(model), Machine(None, {}))
    own = (part for part in found if (part.process, part.device) == (process, place))
    return sum(part.size for part in own if part.what != "CUDA")


def main() -> None:
    parser = argparse.ArgumentParser(description="The memory plan against what processes take.")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["1M", "25M"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--updates", type=int, default=2, help="before the checkpoint")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", nargs=2, metavar=("ARM", "MODEL"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(measure_peak(chosen.one[0], Path(chosen.one[1]), chosen.device, chosen.updates))
        return
    for size in chosen.sizes:
        with tempfile.TemporaryDirectory() as folder:
            model = make(size, Path(folder))
            for arm in chosen.arms:
                command = [sys.executable, __file__, "--device", chosen.device]
                command += ["--updates", str(chosen.updates), "--one", arm, str(model)]
                finished = subprocess.run(
                    command,
                    check=True,
                    capture_output=True,
                    text=True,
                    env=os.environ | KERNEL_CACHES,
                )
                peak = int(finished.stdout.split()[-1])
                plan = plan_memory(arm, model, chosen.device)
                row = {"size": size, "arm": arm, "planned": plan, "peak": peak}
                print(json.dumps(row | {"off": round(plan / peak - 1, 3)}), flush=True)


if __name__ == "__main__":
    main()
