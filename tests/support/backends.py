"""What a test runs on: the embedded default at once, the services as well among the slow tests."""

from importlib.util import find_spec

import pytest

DATABASES = ("sqlite", pytest.param("postgres", marks=pytest.mark.slow))
BACKENDS = ("embedded", pytest.param("services", marks=pytest.mark.slow))
NEEDS_DEEPSPEED = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="pip install 'agentrl-system[deepspeed]'"
)
