"""A vLLM engine on the fake of `fake_vllm.py`, its follower and checkpoints for them."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import fake_vllm
from checkpoint_rows import register
from running import eventually, fakes_of
from safetensors.numpy import load_file, save_file
from sqlalchemy import select

from agentrl.checkpoints import manifest
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import PolicyServer, Vllm
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.db.models.processes import Serving
from agentrl.db.models.updates import Checkpoint
from agentrl.db.store import Store
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.follower import Follower, FollowerConfig
from agentrl.serving.served_checkpoints import ServedCheckpoints
from agentrl.serving.vllm.engine import VllmEngine
from agentrl.serving.vllm.process import Timings

PROBE_TOKENS = [5, 9, 2, 30]
QUICK = Timings(look_s=0.02, health_s=0.1, back_off_s=(0.05,))  # a start may be made to hang


def vllm_config(
    folder: Path,
    *,
    rank: int = 0,
    version: str = "0.32.0",
    call_s: float = 20.0,
    **options: object,
) -> Config:
    """Write a fake interpreter to `folder`; return a configuration with a policy server on it.

    `rank`: of adapters; 0: whole weights, exchanged in place. `options`: fields of PolicyServer.
    """
    python = fake_vllm.write_interpreter(folder, version)
    section = Vllm(python=str(python), start_s=60.0, call_s=call_s)
    server = PolicyServer(name="p", engine="vllm", vllm=section, **options)  # type: ignore[arg-type]
    return Config(
        tasks={"dbbench": Task()},
        run=Run(home=str(folder / "home")),
        policy=[server],
        trainer=Trainer(lora=Lora(rank=rank)),
    )


class VllmBench:
    """An engine, its follower and the checkpoints c0, c1, … that a test publishes."""

    def __init__(self, folder: Path, store: Store, model: Path, config: Config) -> None:
        self.folder, self.store, self.model = folder, store, model
        server = config.policy[0]
        self.served = ServedCheckpoints()
        self.engine = VllmEngine(serving_config(config), server, timings=QUICK)
        follower_config = FollowerConfig("server", server.tracks, drain_s=server.drain_s)
        self.follower = Follower(self.engine, self.served, store, follower_config)
        self.live: list[Checkpoint] = []

    def publish(
        self,
        *,
        has_wrong_probe: bool = False,
        has_probe: bool = True,
        is_torn: bool = False,
        model: Path | None = None,
    ) -> str:
        """Publish the next version, with the probe that the fake would give; return its name.

        `has_wrong_probe`: its log-probabilities are 0.5 too large. `is_torn`: a file is not what
        its manifest says.
        """
        version = len(self.live)
        name, path = f"c{version}", self.folder / f"c{version}"
        shutil.copytree(model or self.model, path)
        weights = load_file(path / "model.safetensors")
        weights["model.norm.weight"] = weights["model.norm.weight"] + version
        save_file(weights, path / "model.safetensors")
        truth = [fake_vllm.logprob(fake_vllm.digest(path), token) for token in PROBE_TOKENS[1:]]
        probe = manifest.Probe(PROBE_TOKENS, [value + 0.5 * has_wrong_probe for value in truth])
        found = manifest.Manifest(
            name, version, None, manifest.digests(path), probe if has_probe else None
        )
        manifest.write(path, found)
        if is_torn:
            (path / "model.safetensors").write_bytes(b"torn")
        self.live.append(register(self.store, name, version, path))
        return name

    def serve_next(self) -> str:
        """Publish the next version and follow the lineage until it is served."""
        name = self.publish()
        self.step_until(lambda: self.serves(name))
        return name

    def step_until(self, fact: Callable[[], bool]) -> None:
        def is_reached() -> bool:
            if not fact():
                self.follower.step(self.live)
            return fact()

        eventually(is_reached, within_s=60, text=lambda: f"{self.served.tracks()} {self.rows()}")

    def serves(self, name: str, track: str = "current") -> bool:
        served = self.served.tracks().get(track)
        return served is not None and served.checkpoint_id == name

    def rows(self) -> list[tuple[str, bool]]:
        """checkpoint_id and whether its row is open, in the order of opening."""
        with self.store.read() as session:
            rows = session.scalars(select(Serving).order_by(Serving.serving_id))
            return [(row.checkpoint_id, row.live_until is None) for row in rows]

    def ask(self, name: str, tokens: int = 3) -> Future[Completion]:
        return self.engine.submit(Request(name, [1, 2], tokens))

    def answers_from_own_weights(self, name: str) -> bool:
        """Return whether the policy's answer is that of its checkpoint's weights."""
        weights = fake_vllm.digest(self.folder / name)
        expected = [fake_vllm.logprob(weights, token) for token in (0, 1, 2)]
        return self.ask(name).result(60).logprobs == expected

    def await_tokens(self) -> None:
        """Wait until the fake has sampled the first token of a long request."""
        begun = self.folder / "sampling"
        eventually(begun.exists, within_s=60, text=lambda: "no token was sampled")

    def launches(self) -> list[str]:
        """Return the directory that each launch of vLLM began with."""
        return (self.folder / "launches").read_text().split()

    def vllm_pid(self) -> int:
        (found,) = fakes_of(self.folder)
        return found
