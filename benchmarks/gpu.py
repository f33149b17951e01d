"""What a GPU does with a model of a published size: one question a command, one JSON line each.

    python benchmarks/gpu.py COMMAND [--device cuda] [--model Qwen/Qwen2.5-1.5B-Instruct] …

make      random weights of the architecture, in bfloat16, as a directory that the others read
kernels   what bounds the others: products in bfloat16, copies on the card, copies from the host
train     an update of the trainer on packed trajectories: tokens a second, the share of the
          ceiling's operations (MFU), the ratio to a bare loop (forward, backward and AdamW of the
          same weights, cross-entropy at the loss tokens), the peak beside the memory plan
probe     the trainer's checkpoint in the local engine: |Δlogp| of the probe text
mismatch  tokens that the local engine sampled, scored by the trainer: importance ratios
serve     episodes of several turns in the local engine and, with --vllm PYTHON, in vLLM: through
          our server, and asked directly without log-probabilities
swap      from the optimizer's step to the first token of the new weights, whole and as an adapter
overlap   updates and episodes at once on one device, beside each of them alone

Every line has `command`, `model` and `device`, and all but `kernels` a bound:

ceiling     what the hardware could do at best. make: seconds of the disk. train: 1e12 operations a
            second. serve: tokens a second by episodes at once, if a pass only reads the matrices or
            only multiplies. swap: seconds of the disk and, on a GPU, of the bus. overlap: seconds
            of the longer of both alone
tolerance   probe: what policy servers accept. mismatch: where alarms begin
plan_bytes  what `agentrl doctor` plans on the device, with trajectories of --length tokens. train:
            for the trainer. serve: for the local engine. swap, overlap: for both

`benchmarks/gpu.sh` runs all of them. `--device cpu --model tiny` rehearses them anywhere.
"""

import argparse
import json
import math
import shlex
import statistics
import sys
import tempfile
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import bare_vllm
import numpy as np
import torch
import weights
from engine import episodes
from helpers import device_speed
from helpers.bare_loop import bare_update
from helpers.gpu_setup import (
    DTYPE,
    hardware,
    load_engine,
    make_sampled,
    model_of,
    planned_bytes,
    random_batch,
    settings_of,
)
from helpers.random_models import make_model

from agentrl.core import logging
from agentrl.core.config.sections.policies import Vllm
from agentrl.core.config.sections.training import Alarms
from agentrl.ops.configuration.model_spec import read_spec
from agentrl.serving.checkpoint_loader import tolerance
from agentrl.serving.engine_api import Request
from agentrl.trainer.algorithm.presets import Settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Metrics
from agentrl.trainer.engines.torch_learner import TorchLearner

Figures = dict[str, Any]
BOTH = "trainer", "policy"  # processes of a run


def make(chosen: argparse.Namespace) -> Figures:
    began = time.perf_counter()
    parameters = make_model(chosen.model, chosen.folder, chosen.device, torch.bfloat16)
    seconds = time.perf_counter() - began
    size = sum(file.stat().st_size for file in chosen.folder.iterdir())
    ceiling = weights.floor(chosen.folder, size)
    return {"parameters": parameters, "bytes": size, "seconds": seconds, "ceiling": ceiling}


def kernels(chosen: argparse.Namespace) -> Figures:
    """In units of 1e12 operations and 1e9 bytes a second."""
    asked = chosen.device, chosen.repeats
    return {
        "tflops": device_speed.matmul_speed(*asked) / 1e12,
        "copy_gb_s": device_speed.copy_speed(*asked, chosen.device) / 1e9,
        "from_host_gb_s": device_speed.copy_speed(*asked, "cpu") / 1e9,
    }


def train(chosen: argparse.Namespace) -> Figures:
    spec, settings = read_spec(chosen.folder), settings_of(chosen)
    batch = random_batch(chosen, spec, settings)
    update_s, peak = update(chosen, batch, settings)
    bare = bare_update(chosen.folder, batch, settings, hardware(chosen), every_token=False)
    bare_s = device_speed.median_s(chosen.device, chosen.repeats, bare)
    ceiling = device_speed.matmul_speed(chosen.device, chosen.repeats)
    tokens = int(batch.tokens.size)
    return {
        "tokens_per_s": tokens / update_s,
        "vs_bare": bare_s / update_s,
        "mfu": device_speed.operations(spec, batch) / update_s / ceiling,
        "peak_bytes": peak,
        "plan_bytes": planned_bytes(chosen, spec, "trainer"),
        "ceiling": ceiling / 1e12,
    }


def update(
    chosen: argparse.Namespace, batch: Batch, settings: Settings
) -> tuple[float, float | None]:
    """Seconds of an update, and on a GPU its peak in bytes, of its passes or of its step."""
    learner = TorchLearner(chosen.folder, settings, hardware(chosen))
    found: list[Metrics] = []
    update_s = device_speed.median_s(
        chosen.device, chosen.repeats, lambda: found.append(learner.update(batch))
    )
    if chosen.device == "cpu":
        return update_s, None
    passes = found[-1].values["micro_batch_peak_bytes"]
    return update_s, max(passes, torch.cuda.max_memory_allocated())  # since the last pass began


def probe(chosen: argparse.Namespace) -> Figures:
    learner = TorchLearner(chosen.folder, settings_of(chosen), hardware(chosen))
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder)
        learner.copy_weights()(saved)
        expected = learner.probe()
        engine = load_engine(chosen, saved)
        found = engine.score("policy", expected.token_ids)
        engine.close()
    off = [abs(a - b) for a, b in zip(expected.logprobs, found or (), strict=True)]
    return {
        "tokens": len(off),
        "median": statistics.median(off),
        "largest": max(off),
        "tolerance": {"median": tolerance(DTYPE)},
    }


def mismatch(chosen: argparse.Namespace) -> Figures:
    """The first update's own metrics, over trajectories that the local engine sampled."""
    spec, settings = read_spec(chosen.folder), settings_of(chosen)
    engine = load_engine(chosen, chosen.folder)
    random = np.random.default_rng(0)
    half = chosen.length // 2
    prompts = random.integers(0, spec.vocabulary, (chosen.episodes, half)).tolist()
    asked = [engine.submit(Request("policy", prompt, half)) for prompt in prompts]
    rows = [(p, a.result()) for p, a in zip(prompts, asked, strict=True)]
    engine.close()
    members = tuple(make_sampled(p, answer.token_ids, answer.logprobs) for p, answer in rows)
    batch = assemble_batch([TrainableGroup("group", "task", members)], settings)
    values = TorchLearner(chosen.folder, settings, hardware(chosen)).update(batch).values
    names = ("mismatch_k1", "mismatch_k3", "max_ratio", "effective_sample_size", "loss_tokens")
    alarms = Alarms()
    accepted = {
        "mismatch_k3": alarms.max_mismatch_kl,
        "max_ratio": alarms.max_ratio,
        "effective_sample_size": alarms.min_effective_sample_size,
    }
    return {name: values[name] for name in names} | {"tolerance": accepted}


def serve(chosen: argparse.Namespace) -> Figures:
    """Sampled tokens a second by episodes at once."""
    spec = read_spec(chosen.folder)
    engine = load_engine(chosen, chosen.folder)
    episodes(engine, spec.vocabulary, 2)
    found: Figures = {
        f"local_{count}": episodes(engine, spec.vocabulary, count) for count in chosen.concurrent
    }
    engine.close()
    if chosen.vllm is not None:
        found |= vllm_in_two_ways(chosen, spec.vocabulary)
    asked = chosen.device, chosen.repeats
    speed = device_speed.copy_speed(*asked, chosen.device), device_speed.matmul_speed(*asked)
    ceiling = {n: device_speed.decoding_ceiling(spec, n, *speed) for n in chosen.concurrent}
    return found | {"plan_bytes": planned_bytes(chosen, spec, "policy"), "ceiling": ceiling}


def vllm_in_two_ways(chosen: argparse.Namespace, vocabulary: int) -> Figures:
    """The speed through our server and that of vLLM alone, in turn, and the median ratio."""
    found: Figures = {}
    section = Vllm(python=str(chosen.vllm), args=shlex.split(chosen.vllm_args))
    with bare_vllm.two_ways(section, model_of(chosen), max(chosen.concurrent)) as ways:
        for count in chosen.concurrent:
            pairs = [
                [episodes(way, vocabulary, count) for way in ways]
                for _ in range(chosen.repeats + 1)  # the first warms up
            ][1:]
            found |= {
                f"vllm_{count}": statistics.median(through for through, _ in pairs),
                f"bare_vllm_{count}": statistics.median(alone for _, alone in pairs),
                f"vllm_vs_bare_{count}": statistics.median(one / two for one, two in pairs),
            }
    return found


def swap(chosen: argparse.Namespace) -> Figures:
    spec, ranks = read_spec(chosen.folder), {"full": 0, "lora": chosen.rank or 16}
    options = argparse.Namespace(
        device=chosen.device, dtype=DTYPE, rank=ranks["lora"], repeats=3, updates=1, folder=None
    )
    rows = {way: weights.measure(chosen.model, way, "local", options) for way in ranks}
    found = {f"{way}_{key}": row[key] for way, row in rows.items() for key in ("total", "disk")}
    bus = math.inf  # bytes a second; the CPU needs none
    if chosen.device != "cpu":
        bus = device_speed.copy_speed(chosen.device, chosen.repeats, "cpu")
    plans = {
        way: planned_bytes(argparse.Namespace(**vars(chosen) | {"rank": rank}), spec, *BOTH)
        for way, rank in ranks.items()
    }
    crossings = {way: 2 * row["mib"] * 2**20 / bus for way, row in rows.items()}  # there and back
    ceiling = {way: rows[way]["disk"] + s for way, s in crossings.items()}
    return found | {"plan_bytes": plans, "ceiling": ceiling}


def overlap(chosen: argparse.Namespace) -> Figures:
    """Seconds of so many updates, of so many rounds of episodes, and of both at once."""
    spec, settings = read_spec(chosen.folder), settings_of(chosen)
    batch = random_batch(chosen, spec, settings)
    learner = TorchLearner(chosen.folder, settings, hardware(chosen))
    engine = load_engine(chosen, chosen.folder)
    count = max(chosen.concurrent)

    def updates() -> None:
        for _ in range(chosen.repeats):
            learner.update(batch)

    def rounds() -> None:
        for _ in range(chosen.repeats):
            episodes(engine, spec.vocabulary, count)

    def both() -> None:
        beside = threading.Thread(target=rounds)
        beside.start()
        updates()
        beside.join()

    updates()
    rounds()
    training, generation, together = (
        device_speed.seconds(chosen.device, work) for work in (updates, rounds, both)
    )
    engine.close()
    return {
        "training_s": training,
        "generation_s": generation,
        "together_s": together,
        "vs_in_turn": (training + generation) / together,
        "plan_bytes": planned_bytes(chosen, spec, *BOTH),
        "ceiling": max(training, generation),
    }


COMMANDS = (make, kernels, train, probe, mismatch, serve, swap, overlap)


def main() -> None:
    commands = {command.__name__: command for command in COMMANDS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=commands)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B-Instruct", help="or tiny")
    parser.add_argument("--folder", type=Path, default=Path("runs/gpu-model"), help="see make")
    parser.add_argument("--tokens", type=int, default=8192, help="of a micro-batch")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a trajectory")
    parser.add_argument("--episodes", type=int, default=16, help="trajectories of an update")
    parser.add_argument("--concurrent", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rank", type=int, default=0, help="of an adapter; 0: all weights")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vllm", type=Path, help="a Python that has vLLM, to measure it as well")
    parser.add_argument("--vllm-args", default="", help="its further arguments, in one text")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    logging.configure("gpu", level="WARNING")
    with redirect_stdout(sys.stderr):  # for logs of libraries
        figures = commands[chosen.command](chosen)
    name = torch.cuda.get_device_name() if chosen.device != "cpu" else "cpu"
    asked = {"command": chosen.command, "model": chosen.model, "device": name}
    print(json.dumps(asked | round_figures(figures)), flush=True)


def round_figures(figure: Any) -> Any:
    """Four digits of each number with a fraction."""
    if isinstance(figure, dict):
        return {name: round_figures(value) for name, value in figure.items()}
    return float(f"{figure:.4g}") if isinstance(figure, float) else figure


if __name__ == "__main__":
    main()
