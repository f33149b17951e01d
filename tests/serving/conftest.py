"""Tiny random models on disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from random_model import save_random_qwen3
from torch_device import DEVICE

from agentrl.serving.local.engine import LocalEngine
from agentrl.serving.local.recorded_passes import CudaCapture, Recorders

Save = Callable[[str], Path]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def save_model(tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Save a random Qwen3; the same name gives the same weights."""
    folder = tmp_path_factory.mktemp("models")
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    shape |= {"max_position_embeddings": 1024, "initializer_range": 0.3}

    def save(name: str) -> Path:
        path = folder / name
        if not path.exists():
            save_random_qwen3(path, sum(name.encode()), **shape)
        return path

    return save


@pytest.fixture(params=["recorded", "one by one"])
def recorders(request: pytest.FixtureRequest) -> Recorders:
    """Passes recorded, or not. Without a GPU a recorded pass is repeated."""
    capture = None
    if request.param == "recorded":
        capture = CudaCapture(torch.device(DEVICE)) if DEVICE != "cpu" else lambda run: run
    return Recorders(capture, 0.01, unrecorded=0)


@pytest.fixture
def engine(save_model: Save, recorders: Recorders) -> Iterator[LocalEngine]:
    """A local engine with the policies `a` and `b`."""
    engine = LocalEngine(DEVICE, max_batch=8, recorders=recorders)
    engine.load("a", save_model("a"))
    engine.load("b", save_model("b"))
    yield engine
    engine.close()
