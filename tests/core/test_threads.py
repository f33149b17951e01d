import pytest
from structlog.testing import capture_logs

from core.errors import StoreError
from core.threads import DIED, vital_thread


@pytest.mark.parametrize("error", [StoreError("store x: wrong login"), KeyError("track")])
def test_a_thread_that_dies_ends_the_process_with_one_line(error: Exception) -> None:
    left: list[int] = []

    def work() -> None:
        raise error

    with capture_logs() as lines:
        thread = vital_thread("lease", work, leave=left.append)
        thread.start()
        thread.join(60)
    assert left == [DIED]
    (line,) = lines
    assert line["event"] == "A thread that the process needs has died: the process ends"
    assert line["thread"] == "lease"
    assert str(error) in line["error"]


def test_a_thread_whose_work_is_done_ends_alone() -> None:
    left: list[int] = []
    thread = vital_thread("lease", lambda: None, leave=left.append)
    thread.start()
    thread.join(60)
    assert left == []
