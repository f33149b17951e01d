"""The device of the torch tests of trainer and local engine: AGENTRL_TEST_DEVICE, else the CPU."""

import os

import pytest

DEVICE = os.environ.get("AGENTRL_TEST_DEVICE", "cpu")


def require_test_device(device: str = DEVICE) -> None:
    """Raise pytest.UsageError unless this machine has the device."""
    kind, _, index = device.partition(":")
    if device == "cpu":
        return
    if kind != "cuda" or not (index or "0").isdecimal():
        raise pytest.UsageError(f"AGENTRL_TEST_DEVICE is {device!r}: set it to cpu, cuda or cuda:N")
    import torch

    count = torch.cuda.device_count()
    if int(index or 0) >= count:
        raise pytest.UsageError(
            f"AGENTRL_TEST_DEVICE is {device!r}, but torch {torch.__version__} finds {count} GPUs: "
            "unset it to run the torch tests on the CPU"
        )
