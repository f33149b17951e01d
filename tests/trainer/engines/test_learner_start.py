from pathlib import Path

import pytest
import torch

from agentrl.core.config.sections.training import Trainer
from agentrl.core.errors import CheckpointError, ConfigError
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner

SETTINGS = resolve_settings(Trainer())


def test_a_device_that_is_absent_is_one_clear_line(tiny: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is such a device")
    with pytest.raises(ConfigError, match=r"model\.device: this machine has no cuda"):
        TorchLearner(tiny, SETTINGS, Hardware(device="cuda"))


def test_a_missing_model_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="transformers cannot load this model") as caught:
        TorchLearner(tmp_path / "absent", SETTINGS, Hardware())
    assert "\n" not in str(caught.value)
