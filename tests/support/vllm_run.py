"""`agentrl policy` with a real vLLM behind it, the checkpoints of its run, and their truth."""

import random
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from checkpoint_rows import register
from peft import PeftModel
from prometheus_scrape import free_port
from running import ROOT, agentrl, eventually, processes_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from agentrl.checkpoints import manifest
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.store import Store, open_store
from agentrl.db.transitions import runs
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.model.trainable_model import (
    AdapterModel,
    make_probe,
    tensors_to_save,
    trainable_parameters,
)
from agentrl.workers.policies.client import Ask, Completion, PolicyClient

CONFIG = """
[run]
name = "v"
home = "{home}"
[model]
path = "{model}"
[sampling]
max_tokens = 2048
[tasks.dbbench.options]
style = "compact"
difficulty = "easy"
[trainer.lora]
rank = {rank}
[[policy]]
name = "p"
engine = "vllm"
tracks = {tracks}
drain_s = 0.2
[policy.vllm]
python = "{python}"
[metrics]
port = {port}
"""
START_S = 600.0  # on a machine that is busy with other tests
CPU = torch.device("cpu")
auto: Any = AutoModelForCausalLM


@dataclass
class Exchange:
    """A request, who answered, and what."""

    policy: LivePolicy
    ask: Ask
    answer: Completion


class VllmRun:
    """A run whose checkpoints a test publishes; `truth` is transformers' own forward pass."""

    def __init__(self, home: Path, process: "subprocess.Popen[bytes]", port: int) -> None:
        """port: of its metrics."""
        self.home = home
        self.process = process
        self.port = port
        self.output = home / "output"
        eventually((home / "store.db").exists, within_s=90, text=self.output.read_text)
        self.store: Store = open_store(f"sqlite:///{home / 'store.db'}")
        self.client = PolicyClient()
        self.models: dict[str, Any] = {}
        eventually(self._begun, within_s=90, text=self.output.read_text)

    def _begun(self) -> bool:
        try:
            with self.store.read() as session:
                self.run_id = runs.require_run(session, "v").run_id
                first = checkpoints.live_checkpoints(session, self.run_id)
                self.names = [row.checkpoint_id for row in first]
                self.first = Path(first[0].path)
        except Exception:  # the schema is being made
            return False
        return True

    def publish(self, seed: int, rank: int, flaw: str = "") -> str:
        """The next version: a random adapter, or random changes of all weights.

        flaw: `lie` (in its probe), `torn` (other than its manifest), or `half` (whole, but vLLM
        can read only the first tensors of its weights).
        """
        version = len(self.names)
        name, path = f"v{version}", self.home / f"v{version}"
        path.mkdir()
        torch.manual_seed(seed)
        if rank:
            tuned = AdapterModel(
                self.first, resolve_settings(Trainer(lora=Lora(rank=rank))), Hardware()
            )
            with torch.no_grad():
                for key, value in tuned.model.named_parameters():
                    if "lora_B" in key:
                        value.normal_(std=0.05)
            tuned.save(path, tensors_to_save(trainable_parameters(tuned.model), torch.float32))
            model = tuned.model
        else:
            shutil.copytree(self.first, path, dirs_exist_ok=True)
            model = auto.from_pretrained(self.first)
            with torch.no_grad():
                for value in model.parameters():
                    value.add_(torch.randn_like(value), alpha=0.01)
            model.save_pretrained(path)
        if flaw == "half":
            make_half_readable(path)
        told = make_probe(model, torch.float32)
        if flaw == "lie":
            told = manifest.Probe(told.token_ids, [value - 0.05 for value in told.logprobs])
        digests = manifest.digests(path)
        manifest.write(path, manifest.Manifest(name, version, self.names[-1], digests, told))
        if flaw == "torn":
            next(path.glob("*.safetensors")).write_bytes(b"torn")
        register(self.store, name, version, path, run_id=self.run_id)
        self.names.append(name)
        return name

    def live(self) -> dict[str, LivePolicy]:
        """By track."""
        with self.store.read() as session:
            return {each.track: each for each in checkpoints.live_policies(session, self.run_id)}

    def await_live(self, expected: dict[str, str], within_s: float = START_S) -> None:
        def reached() -> bool:
            return {t: p.checkpoint_id for t, p in self.live().items()} == expected

        eventually(reached, within_s=within_s, text=self.output.read_text)

    def refused(self, name: str) -> str:
        """Wait until the process has said that it does not serve a checkpoint, and why."""
        found: list[str] = []

        def said() -> bool:
            found.extend(
                line
                for line in self.output.read_text().splitlines()
                if "Checkpoint cannot be served" in line and f'"{name}"' in line
            )
            return bool(found)

        eventually(said, within_s=180, text=self.output.read_text)
        return found[0]

    def ask(
        self, policy: LivePolicy, source: random.Random, most: int = 24, *, whole: bool = False
    ) -> Exchange:
        """`whole`: so many tokens and no fewer."""
        prompt = [source.randrange(600) for _ in range(source.randint(3, 60))]
        temperature = source.choice([0.0, 0.7, 1.0])
        count, stops = (most, []) if whole else (source.randint(1, most), [1])
        ask = Ask(prompt, count, temperature, stops, source.getrandbits(31), "s")
        return Exchange(policy, ask, self.client.complete(policy, ask, timeout_s=180))

    def ask_many(self, seeds: Sequence[int], policies: Sequence[LivePolicy]) -> list[Exchange]:
        """All at once, each of one of the policies."""

        def one(seed: int) -> Exchange:
            source = random.Random(seed)
            return self.ask(source.choice(policies), source)

        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(one, seeds))

    def truth(self, asked: Exchange, name: str = "") -> list[float]:
        """Log-probabilities of the sampled tokens by the checkpoint's own forward pass."""
        model = self._model(name or asked.policy.checkpoint_id)
        prompt, tokens = list(asked.ask.prompt), asked.answer.token_ids
        ids = torch.tensor([prompt + tokens])
        with torch.inference_mode():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
        every = torch.log_softmax(logits / (asked.ask.temperature or 1.0), dim=-1)
        chosen: list[float] = every.gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        return chosen

    def off(self, asked: Exchange, name: str = "") -> float:
        """The largest difference from the truth."""
        pairs = zip(asked.answer.logprobs, self.truth(asked, name), strict=True)
        return max(abs(a - b) for a, b in pairs)

    def _model(self, name: str) -> Any:
        if name not in self.models:
            with self.store.read() as session:
                row = session.get(Checkpoint, name)
                assert row is not None
                path = Path(row.path)
            adapted = (path / "adapter_config.json").is_file()
            model = auto.from_pretrained(self.first if adapted else path)
            model = PeftModel.from_pretrained(model, path) if adapted else model
            self.models[name] = model.eval()
        return self.models[name]

    def vllm(self) -> list[int]:
        """Pids of vLLM's processes, its guard and trackers left out."""
        found = []
        for pid in processes_of(self.home):
            with suppress(OSError):  # one that ends meanwhile
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"vllm_guard" not in words and b"agentrl.cli.main" not in words:
                    found.append(pid)
        return found


def make_half_readable(path: Path) -> None:
    """Move all tensors but the first of a fused layer to a file of an unknown type."""
    whole = path / "model.safetensors"
    tensors = load_file(whole)
    first = sorted(tensors).index("model.layers.0.self_attn.k_proj.weight") + 1
    names = sorted(tensors)
    for number, part in enumerate((names[:first], names[first:]), 1):
        save_file({name: tensors[name] for name in part}, path / f"model-{number}.safetensors")
    second = path / "model-2.safetensors"
    second.write_bytes(second.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"F99"'))
    whole.unlink()


@contextmanager
def vllm_run(home: Path, python: Path, rank: int, tracks: Sequence[str]) -> Iterator[VllmRun]:
    """Run `agentrl policy CONFIG` until the block ends."""
    config = home / "config.toml"
    model, words = ROOT / "models/tiny", str(list(tracks)).replace("'", '"')
    port = free_port()
    config.write_text(
        CONFIG.format(home=home, model=model, rank=rank, tracks=words, python=python, port=port)
    )
    output = home / "output"
    with agentrl("policy", str(config), environment={}, output=output) as process:
        run = VllmRun(home, process, port)
        try:
            yield run
        finally:
            run.client.close()
            run.store.close()
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
