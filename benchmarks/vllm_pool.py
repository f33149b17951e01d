"""Several policies on one vLLM against one policy and against a vLLM for each.

    python benchmarks/vllm_pool.py [--python PYTHON] [--servers 2] [--requests 192]

One small random model and three random adapters. Each arm answers the same requests, 32 at once;
the machine's cores are shared by all servers of an arm. Memory is PSS of vLLM's processes.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from helpers.random_models import make_model

from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model, PolicyServer, Vllm
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.types import CURRENT
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.engine_api import EngineAway, Request
from agentrl.serving.served_checkpoints import ServedCheckpoints
from agentrl.serving.server import PolicyApp, Server
from agentrl.serving.vllm.engine import VllmEngine
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.model.trainable_model import (
    AdapterModel,
    tensors_to_save,
    trainable_parameters,
)

RANK, ADAPTERS, AT_ONCE = 8, 3, 32
PROMPT, SAMPLED = 60, 32  # tokens


def engine_at(
    home: Path, section: Vllm, rank: int = RANK, model: Model | None = None
) -> VllmEngine:
    """A vLLM of its own, not started yet. `model`: device and dtype; default: CPU and fp32."""
    server = PolicyServer(name="vllm", engine="vllm", vllm=section)
    run, trainer = Run(home=str(home)), Trainer(lora=Lora(rank=rank))
    config = Config(tasks={}, run=run, model=model or Model(), trainer=trainer, policy=[server])
    return VllmEngine(serving_config(config), server)


def load(engine: VllmEngine, name: str, path: Path) -> None:
    """Wait for vLLM where it starts."""
    while True:
        try:
            return engine.load(name, path)
        except EngineAway:
            time.sleep(0.2)


def adapters(base: Path, folder: Path) -> dict[str, Path]:
    """The base, to be served as a zero adapter, and random adapters."""
    found = {"zero": base}
    for number in range(ADAPTERS):
        tuned = AdapterModel(base, resolve_settings(Trainer(lora=Lora(rank=RANK))), Hardware())
        with torch.no_grad():
            for name, value in tuned.model.named_parameters():
                if "lora_B" in name:
                    value.normal_(std=0.05)
        path = folder / f"adapter{number}"
        path.mkdir()
        tuned.save(path, tensors_to_save(trainable_parameters(tuned.model), torch.float32))
        found[path.name] = path
    return found


def speed(places: Sequence[tuple[VllmEngine, str]], requests: int) -> float:
    """Sampled tokens a second; request n goes to place n modulo their number."""
    source = random.Random(0)
    prompts = [[source.randrange(600) for _ in range(PROMPT)] for _ in range(requests)]

    def one(number: int) -> int:
        engine, name = places[number % len(places)]
        return len(engine.submit(Request(name, prompts[number], SAMPLED)).result().token_ids)

    started = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sampled = sum(pool.map(one, range(requests)))
    return sampled / (time.perf_counter() - started)


def pss(folder: Path) -> float:
    """GiB of the process groups whose guards' command lines name the folder."""
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    groups, total = set(), 0
    for entry in entries:
        with suppress(OSError):
            told = (entry / "cmdline").read_bytes()
            if b"vllm_guard" in told and str(folder).encode() in told:
                groups.add(os.getpgid(int(entry.name)))
    for entry in entries:
        with suppress(OSError, psutil.Error):
            if os.getpgid(int(entry.name)) in groups:
                total += psutil.Process(int(entry.name)).memory_full_info().pss
    return total / 2**30


@contextmanager
def server_of(engine: VllmEngine, policy: str) -> Iterator[str]:
    """A policy server before vLLM: its URL."""
    table = ServedCheckpoints()
    table.serve(CURRENT, policy, 0)
    with closing(Server(PolicyApp(engine, table, ""), "127.0.0.1", 0, guarded=False)) as server:
        yield server.url


def measure(python: Path, servers: int, requests: int, folder: Path) -> list[dict[str, Any]]:
    base = folder / "base"
    make_model("quickstart", base)
    policies = adapters(base, folder)
    names, rows = list(policies), []

    def row(arm: str, places: Sequence[tuple[VllmEngine, str]]) -> None:
        speed(places, 2 * AT_ONCE)
        rates = [speed(places, requests) for _ in range(3)]
        rows.append(
            {"arm": arm, "tok_s": statistics.median(rates), "slowest": min(rates),
             "fastest": max(rates), "pss_gib": pss(folder)}
        )  # fmt: skip

    section = Vllm(python=str(python))
    engines = [engine_at(folder / f"s{number}", section) for number in range(servers)]
    try:
        first = engines[0]
        load(first, "zero", policies["zero"])
        row("1 policy, 1 server", [(first, "zero")])
        for name in names[1:]:
            load(first, name, policies[name])
        row(f"{len(names)} policies, 1 server", [(first, name) for name in names])
        for engine, name in zip(engines[1:], names[1:], strict=False):
            load(engine, name, policies[name])
        row(
            f"{servers} policies, {servers} servers",
            [(engine, name) for engine, name in zip(engines, names, strict=False)],
        )
    finally:
        for engine in engines:
            engine.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, default=Path(".venv-vllm/bin/python"))
    parser.add_argument("--servers", type=int, default=2, help="of the last arm, at most 4")
    parser.add_argument("--requests", type=int, default=192)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options.python, options.servers, options.requests, Path(folder))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
