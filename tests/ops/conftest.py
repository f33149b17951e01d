from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_episodes import RecordedRun


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[RecordedRun]:
    """A begun run, in which a test records episodes."""
    with RecordedRun.begin(tmp_path) as run:
        yield run
