"""AGENTRL_TEST_DEVICE moves the torch tests to a GPU, or ends pytest before the first test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch_device import require_test_device

ROOT = Path(__file__).parents[1]


def test_a_gpu_that_is_absent_ends_pytest_at_collection_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/trainer/model"],
        cwd=ROOT,
        env=os.environ | {"AGENTRL_TEST_DEVICE": "cuda:99"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = (done.stdout + done.stderr).strip().splitlines()
    assert line.startswith("ERROR: AGENTRL_TEST_DEVICE is 'cuda:99', but torch ")
    assert line.endswith("GPUs: unset it to run the torch tests on the CPU")


@pytest.mark.parametrize("name", ["gpu", "cuda:one", "cuda:-1", ""])
def test_a_name_that_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(pytest.UsageError, match="set it to cpu, cuda or cuda:N"):
        require_test_device(name)
