"""Measuring on a vLLM of one's own, a small fake: one launch for a run, and nothing is left."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import fake_vllm
import numpy as np
import pytest
from checkpoint_rows import register
from fake_vllm import set_faults
from running import ROOT, eventually, fakes_of
from safetensors.numpy import load_file, save_file
from sqlalchemy import func, select

from agentrl.checkpoints import manifest
from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.errors import AgentRLError, PolicyError
from agentrl.core.types import RunState
from agentrl.db.models.evaluations import EvaluationEpisode
from agentrl.db.store import open_store
from agentrl.db.transitions import runs
from agentrl.ops.configuration.model_spec import read_spec
from agentrl.ops.doctor.machine import Machine
from agentrl.ops.doctor.memory import memory_plans
from agentrl.ops.doctor.memory_items import GIB
from agentrl.ops.evaluation.command import EvalRequest, evaluate
from agentrl.ops.evaluation.serve_target import ExternalTargets, Servers
from agentrl.ops.evaluation.target import fit_config, resolve
from agentrl.ops.processes.evaluator import evaluate_run
from agentrl.ops.runs.begin import begin, checkpoints_home
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.attempt_errors import EpisodeStopped

TINY = ROOT / "models" / "tiny"
TOKENS = [5, 9, 2, 30]
FILE = """
[run]
name = "own"
home = "{home}"
[model]
path = "{tiny}"
[worker]
concurrency = 4
policy_wait_s = 60.0
[sampling]
max_step_tokens = 24
max_tokens = 256
[tasks.dbbench.options]
style = "compact"
items = 4
test_items = 4
[eval]
engine = "vllm"
vllm.python = "{python}"
vllm.start_s = 60.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path, python = tmp_path / "run.toml", fake_vllm.write_interpreter(tmp_path)
    path.write_text(FILE.format(home=tmp_path / "home", tiny=TINY, python=python))
    return path


def publish(config: Config, run_id: str, version: int, *, lie: bool = False) -> None:
    """A checkpoint of the run, with the probe that the fake would give."""
    name, path = f"c{version}", config.home() / f"c{version}"
    if config.trainer.lora.rank:
        path.mkdir()
        first = checkpoints_home(config, run_id) / f"{run_id}-v000000"
        base = {"base_model_name_or_path": str(first)}
        (path / manifest.ADAPTER).write_text(json.dumps(base))
        save_file({"lora": np.full(4, version)}, path / "adapter_model.safetensors")
    else:
        shutil.copytree(TINY, path)
        weights = load_file(path / "model.safetensors")
        weights["model.norm.weight"] = weights["model.norm.weight"] + version
        save_file(weights, path / "model.safetensors")
    truth = [fake_vllm.logprob(fake_vllm.digest(path), token) for token in TOKENS[1:]]
    probe = manifest.Probe(TOKENS, [value + 0.5 * lie for value in truth])
    (path / manifest.FILE).unlink(missing_ok=True)
    manifest.write(path, manifest.Manifest(name, version, None, manifest.digests(path), probe))
    with closing(open_store(config.store_url())) as store:
        register(store, name, version, path, run_id=run_id)


def episodes(config: Config) -> int:
    with closing(open_store(config.store_url())) as store, store.read() as session:
        return session.scalar(select(func.count()).select_from(EvaluationEpisode)) or 0


def _killed(folder: Path) -> None:
    for pid in fakes_of(folder):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_checkpoints_of_a_run_are_measured_on_one_vllm_and_each_is_proven(
    file: Path, tmp_path: Path
) -> None:
    config = config_loading.load(file)
    run_id = begin(config)
    for version in (1, 2, 3):
        publish(config, run_id, version, lie=version == 3)
    evaluate(file, EvalRequest(checkpoints=("1", "2"), items=2), as_json=True)
    assert episodes(config) == 4
    assert len((tmp_path / "launches").read_text().split()) == 1
    assert fakes_of(tmp_path) == []
    with pytest.raises(PolicyError, match=r"text is 0\.5"):
        evaluate(file, EvalRequest(checkpoints=("3",), items=2), as_json=True)
    assert episodes(config) == 4
    others = (str(TINY), str(config.home() / "c1"))  # of no run: not proven, a vLLM each
    evaluate(file, EvalRequest(policies=others, items=2), as_json=True)
    assert episodes(config) == 8
    assert fakes_of(tmp_path) == []


@pytest.mark.slow
def test_adapters_of_a_run_are_measured_on_one_vllm_of_their_base_and_each_is_proven(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL__TRAINER__LORA__RANK", "4")
    config = config_loading.load(file, os.environ)
    run_id = begin(config)
    for version in (1, 2, 3):
        publish(config, run_id, version, lie=version == 3)
    evaluate(file, EvalRequest(checkpoints=("0", "1", "2"), items=2), as_json=True)
    assert episodes(config) == 6
    [launched] = (tmp_path / "launches").read_text().split()
    assert Path(launched).name == f"{run_id}-v000000"
    with pytest.raises(PolicyError, match=r"text is 0\.5"):
        evaluate(file, EvalRequest(checkpoints=("3",), items=2), as_json=True)
    assert episodes(config) == 6
    assert fakes_of(tmp_path) == []


@pytest.mark.slow
def test_the_evaluator_measures_what_is_due_though_its_vllm_and_what_it_held_are_gone(
    file: Path, tmp_path: Path
) -> None:
    config = config_loading.load(file, {"AGENTRL__EVAL__EVERY": "1", "AGENTRL__EVAL__ITEMS": "1"})
    run_id = begin(config)
    publish(config, run_id, 1)
    thread = threading.Thread(target=evaluate_run, args=(config, threading.Event()), daemon=True)
    thread.start()
    eventually(lambda: episodes(config) == 2, within_s=60, text=lambda: str(episodes(config)))
    shutil.rmtree(checkpoints_home(config, run_id))  # version 0, the last that was measured
    _killed(tmp_path)
    publish(config, run_id, 2)
    eventually(lambda: episodes(config) == 3, within_s=60, text=lambda: str(episodes(config)))
    with closing(open_store(config.store_url())) as store, store.write() as session:
        runs.move_run(session, run_id, RunState.STOPPED, "enough")
    thread.join(100)
    assert not thread.is_alive()
    assert fakes_of(tmp_path) == []


@pytest.mark.slow
def test_a_vllm_that_is_killed_comes_back_and_the_measurement_goes_on(
    file: Path, tmp_path: Path
) -> None:
    config = config_loading.load(file)
    set_faults(tmp_path, token_s=0.05)
    request = EvalRequest(policies=(str(TINY),), items=4, repeats=3)
    thread = threading.Thread(target=evaluate, args=(file, request), kwargs={"as_json": True})
    thread.start()
    try:
        begun = tmp_path / "launches"
        eventually(begun.exists, within_s=60, text=lambda: "no launch")
        eventually(lambda: episodes(config) > 0, within_s=60, text=lambda: "no episode")
        _killed(tmp_path)
    finally:
        thread.join(120)
    assert len(begun.read_text().split()) == 2
    assert episodes(config) == 12
    assert fakes_of(tmp_path) == []


@contextmanager
def measured_meanwhile(file: Path, config: Config) -> Iterator[list[AgentRLError]]:
    """Forty slow episodes of version 1, under way; what ends the measuring is in the list."""
    ended: list[AgentRLError] = []

    def measure() -> None:
        try:
            evaluate(file, EvalRequest(checkpoints=("1",), items=4, repeats=10), as_json=True)
        except AgentRLError as error:
            ended.append(error)

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        eventually(lambda: episodes(config) > 0, within_s=60, text=lambda: "no episode")
        yield ended
    finally:
        thread.join(120)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["does not start", "lies"])
def test_a_vllm_that_is_lost_while_it_measures_ends_the_measurement_with_its_reason(
    file: Path, tmp_path: Path, fault: str
) -> None:
    """And not with episodes that failed, each after its own patience, a minute here."""
    config = config_loading.load(file)
    publish(config, begin(config), 1)
    set_faults(tmp_path, token_s=0.05)
    with measured_meanwhile(file, config) as ended:
        if fault == "lies":
            shutil.copy(TINY / "model.safetensors", config.home() / "c1")
        else:
            set_faults(tmp_path, start=500)
        _killed(tmp_path)
    [error] = ended
    words = {"lies": "on the probe text is", "does not start": "vLLM does not start"}
    assert words[fault] in str(error)
    assert 0 < episodes(config) < 40
    assert fakes_of(tmp_path) == []


@pytest.mark.slow
def test_a_vllm_that_refuses_for_a_while_what_it_lost_is_asked_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENTRL__TRAINER__LORA__RANK", "4")
    config = config_loading.load(file, os.environ)
    publish(config, begin(config), 1)
    set_faults(tmp_path, token_s=0.05)
    said = ""

    def refused() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "Checkpoint not yet loaded again" in said

    with measured_meanwhile(file, config) as ended:
        set_faults(tmp_path, **{"v1/load_lora_adapter": 500})
        _killed(tmp_path)
        eventually(refused, within_s=60, text=lambda: said)
        set_faults(tmp_path)
    assert ended == []
    assert episodes(config) == 40
    assert fakes_of(tmp_path) == []


def test_a_kept_vllm_is_launched_with_what_is_due_where_what_it_held_is_gone(
    file: Path, tmp_path: Path
) -> None:
    config = config_loading.load(file)
    run_id = begin(config)
    for version in (1, 2):
        publish(config, run_id, version)
    first, due = (resolve(f"c{version}", config) for version in (1, 2))
    with closing(Servers()) as servers:
        with servers.served(fit_config(config, first), first) as policy:
            assert policy.checkpoint_id == "c1"
        shutil.rmtree(first.path)  # as retention does
        _killed(tmp_path)
        with servers.served(fit_config(config, due), due) as policy:
            assert policy.checkpoint_id == "c2"
    launched = (tmp_path / "launches").read_text().split()
    assert [Path(path).name for path in launched] == ["c1", "c2"]
    assert fakes_of(tmp_path) == []


def test_a_vllm_that_does_not_start_is_an_error_and_one_that_hangs_is_not_waited_for(
    file: Path, tmp_path: Path
) -> None:
    config, target = config_loading.load(file), resolve(str(TINY), config_loading.load(file))
    own, stop = fit_config(config, target), threading.Event()
    set_faults(tmp_path, start=500)
    with (
        closing(Servers(stop)) as servers,
        pytest.raises(
            PolicyError, match=r"eval\.engine: vLLM does not start; see .*vllm-evaluator\.log"
        ),
        servers.served(own, target),
    ):
        pass
    set_faults(tmp_path, start="hang")
    timer = threading.Timer(1.0, stop.set)
    timer.start()
    with (
        closing(Servers(stop)) as servers,
        pytest.raises(EpisodeStopped),
        servers.served(own, target),
    ):
        pass
    timer.join()
    assert fakes_of(tmp_path) == []


class Refusing(ScriptedEngine):
    """A vLLM that came back without what it held, and does not take it again."""

    def load(self, name: str, path: Path) -> None:  # noqa: ARG002
        raise PolicyError("refused, as told")


def test_a_vllm_that_refuses_for_long_what_it_lost_ends_the_measurement(file: Path) -> None:
    config, lost = config_loading.load(file), threading.Event()
    target = resolve(str(TINY), config)
    keeper = ExternalTargets(Refusing(), config, target, lost, patience_s=0.0)
    with closing(keeper):
        keeper.start()
        assert lost.wait(60)
    assert str(keeper.error) == "refused, as told"


def test_the_memory_plan_counts_the_evaluators_vllm(file: Path) -> None:
    device = {"AGENTRL__MODEL__DEVICE": "cuda", "AGENTRL__EVAL__EVERY": "4"}
    share = {"AGENTRL__EVAL__VLLM__ARGS": '["--gpu-memory-utilization", "0.25"]'}
    machine = Machine(64 * GIB, {"cuda:0": 80 * GIB})
    card, host = memory_plans(config_loading.load(file, device | share), read_spec(TINY), machine)
    words = card.processes()["policy evaluator"]
    assert "25% of the card 20.0 GiB" in words
    assert "vLLM and its proxy" in host.processes()["policy evaluator"]
    tight = {"AGENTRL__EVAL__VLLM__ARGS": '["--gpu-memory-utilization", "0.001"]'}
    card, _ = memory_plans(config_loading.load(file, device | tight), read_spec(TINY), machine)
    assert "policy evaluator: vLLM needs" in card.words()
    assert not card.fits
