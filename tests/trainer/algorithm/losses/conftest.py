"""Losses on the device of the torch tests."""

from collections.abc import Iterator

import pytest
import torch
from torch_device import DEVICE


@pytest.fixture(autouse=True)
def _tensors_on_the_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make the tensors of a test there, unless it compares with other people's programs."""
    if request.node.get_closest_marker("oracles"):
        yield
        return
    with torch.device(DEVICE):
        yield
