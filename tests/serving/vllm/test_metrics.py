"""What vLLM counts of itself is scraped with its policy server, under its labels."""

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_vllm
import msgspec
import pytest
from fake_vllm import set_faults
from prometheus_scrape import free_port, request_metrics
from running import eventually, fakes_of

from agentrl.core.config.config import Config
from agentrl.core.config.sections.monitoring import Metrics
from agentrl.core.config.sections.policies import PolicyServer, Vllm
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.telemetry import metrics
from agentrl.core.telemetry.exposition import serve_metrics
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.engine_api import EngineAway
from agentrl.serving.vllm.engine import VllmEngine
from agentrl.serving.vllm.launch import launch
from agentrl.serving.vllm.process import Timings

OURS = 'agentrl_upstream_tries_total{process="policy-p",run="mine"}'
PATIENT_S = 9.0  # of a busy machine; a scrape waits 10 s
THEIRS = 'vllm:num_requests_running{engine="0",process="policy-p",run="mine"} 0.0'


@pytest.fixture
def config(tmp_path: Path) -> Config:
    section = Vllm(python=str(fake_vllm.write_interpreter(tmp_path)), start_s=60.0)
    return Config(
        tasks={"dbbench": Task()},
        run=Run(home=str(tmp_path / "home")),
        policy=[PolicyServer(name="p", engine="vllm", vllm=section)],
        metrics=Metrics(port=free_port()),
    )


@pytest.fixture
def engine(
    request: pytest.FixtureRequest,
    config: Config,
    tmp_path: Path,
    save_model: Callable[[str], Path],
) -> Iterator[VllmEngine]:
    """A fake vLLM that is up, in a process that is scraped. The parameter: `metrics_s`."""
    timings = Timings(
        look_s=0.02, back_off_s=(0.05,), metrics_s=getattr(request, "param", PATIENT_S)
    )
    made = VllmEngine(serving_config(config), config.policy[0], timings=timings)
    with serve_metrics(config.metrics, "mine", "policy", "policy-p"):
        assert OURS in page(config)
        assert "vllm:" not in page(config)  # it has not begun

        def loaded() -> bool:
            with contextlib.suppress(EngineAway):
                made.load("c0", tmp_path / "c0")
            return bool(made.names())

        shutil.copytree(save_model("a"), tmp_path / "c0")
        try:
            eventually(loaded, within_s=60, text=lambda: "the fake does not start")
            yield made
        finally:
            made.close()


def page(config: Config) -> str:
    status, text = request_metrics(config.metrics.port)
    assert status == 200
    return text


def test_what_vllm_counts_has_the_labels_of_its_policy_server(
    config: Config, engine: VllmEngine
) -> None:
    text = page(config)
    assert OURS in text
    assert THEIRS in text
    assert "# TYPE vllm:num_requests_running gauge" in text
    assert "python_info 1" not in text  # it says the same of itself as we do of us
    taken = serving_config(config)
    other = VllmEngine(taken, config.policy[0])  # as the evaluator's next, made before the end
    engine.close()
    assert metrics.VLLM.read == other.read_metrics
    other.close()
    assert metrics.VLLM.read is None
    assert OURS in page(config)


@pytest.mark.parametrize("engine", [0.2], indirect=True)
@pytest.mark.usefixtures("engine")
def test_while_vllm_hangs_ours_are_scraped_alone(config: Config, tmp_path: Path) -> None:
    set_faults(tmp_path, metrics="hang")
    text = page(config)
    assert OURS in text
    assert "vllm:" not in text


def test_while_vllm_lies_or_is_down_ours_are_scraped_alone(
    config: Config, engine: VllmEngine, tmp_path: Path
) -> None:
    for fault in (500, "garbage"):
        set_faults(tmp_path, metrics=fault)
        text = page(config)
        assert OURS in text
        assert "vllm:" not in text
    set_faults(tmp_path)
    assert THEIRS in page(config)
    set_faults(tmp_path, start="hang")
    for pid in fakes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not engine.names(), within_s=60, text=lambda: "it is still there")
    assert OURS in (text := page(config))
    assert "vllm:" not in text


def test_an_evaluator_passes_on_what_its_vllm_counts() -> None:
    assert metrics.VLLM.roles == ("policy", "evaluator")


def test_vllm_counts_only_where_it_is_asked(config: Config) -> None:
    silent = msgspec.structs.replace(config, metrics=Metrics())
    assert "--disable-log-stats" in launch(serving_config(silent), silent.policy[0]).command
    assert "--disable-log-stats" not in launch(serving_config(config), config.policy[0]).command
