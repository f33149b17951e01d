"""How the trainer's process shares the cores."""

from pathlib import Path

import pytest
from running import ROOT, added_niceness, agentrl

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model, PolicyServer
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer
from agentrl.ops.processes.trainer import CPU_NICE, choose_nice


@pytest.mark.parametrize(
    ("device", "threads", "configured", "nice"),
    [
        ("cpu", 2, None, CPU_NICE),
        ("cpu", 1, None, 0),
        ("cuda:1", 2, None, 0),
        ("cpu", 2, 0, 0),
        ("cuda", 1, 7, 7),
    ],
)
def test_a_cpus_trainer_yields_the_cores_to_servers_of_several_threads_unless_configured(
    device: str, threads: int, configured: int | None, nice: int
) -> None:
    config = Config(
        tasks={},
        model=Model(device=device),
        trainer=Trainer(nice=configured),
        policy=[PolicyServer("policy", tracks=["current"], threads=threads)],
    )
    assert choose_nice(config) == nice


@pytest.mark.slow
def test_its_process_lets_policy_servers_compute_first(tmp_path: Path) -> None:
    config = Config(
        tasks={"dbbench": Task()},
        run=Run(home=str(tmp_path / "home")),
        model=Model(path=str(ROOT / "models" / "tiny")),
        policy=[PolicyServer("policy", tracks=["current"], threads=2)],
    )
    file, log = tmp_path / "run.toml", tmp_path / "log"
    file.write_text(config_loading.to_toml(config))
    with agentrl("trainer", str(file), environment={}, output=log, has_own_session=True) as process:
        assert added_niceness(process, log) == CPU_NICE
