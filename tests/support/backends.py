"""What a test runs on: the embedded default, and the services where they are present."""

from importlib.util import find_spec

import pytest

DATABASES = ("sqlite", "postgres")
BACKENDS = ("embedded", "services")
NEEDS_DEEPSPEED = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="pip install 'agentrl-system[deepspeed]'"
)
