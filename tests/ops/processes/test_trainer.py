"""How the trainer's process shares the cores."""

import os
from pathlib import Path

import pytest
from running import ROOT, agentrl, eventually

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer
from agentrl.ops.processes.trainer import CPU_NICE, choose_nice


@pytest.mark.parametrize(
    ("device", "configured", "nice"),
    [("cpu", None, CPU_NICE), ("cuda:1", None, 0), ("cpu", 0, 0), ("cuda", 7, 7)],
)
def test_only_a_cpus_trainer_yields_the_cores_unless_configured(
    device: str, configured: int | None, nice: int
) -> None:
    trainer = Trainer(nice=configured)
    assert choose_nice(Config(tasks={}, model=Model(device=device), trainer=trainer)) == nice


@pytest.mark.slow
def test_its_process_lets_policy_servers_compute_first(tmp_path: Path) -> None:
    model = Model(path=str(ROOT / "models" / "tiny"))
    config = Config(tasks={"dbbench": Task()}, run=Run(home=str(tmp_path / "home")), model=model)
    file, log = tmp_path / "run.toml", tmp_path / "log"
    file.write_text(config_loading.to_toml(config))
    with agentrl("trainer", str(file), environment={}, output=log) as process:
        nice = os.getpriority(os.PRIO_PROCESS, 0) + CPU_NICE
        eventually(
            lambda: os.getpriority(os.PRIO_PROCESS, process.pid) == nice,
            within_s=120,
            text=log.read_text,
        )
