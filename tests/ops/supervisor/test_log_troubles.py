"""What `up` tells of the logs of its processes."""

import json
from pathlib import Path

import pytest

from agentrl.ops.supervisor.log_troubles import LogWatcher


class Logs:
    """Processes that write, and a watcher whose clock the test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 0.0
        self.write("worker-0", level="error", event="Of a former start")
        self.watcher = LogWatcher(folder, lambda: self.now)

    def write(self, name: str, **fields: object) -> None:
        with (self.folder / f"{name}.log").open("a") as log:
            log.write(json.dumps(fields) + "\n")

    def look(self, after_s: float = 1.0) -> list[str]:
        self.now += after_s
        return self.watcher.look()


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def fails(logs: Logs, times: int) -> None:
    for _ in range(times):
        logs.write("worker-0", level="warning", event="Attempt failed", error="no env server")


def test_episodes_that_fail_again_and_again_are_told_of_with_the_reason(logs: Logs) -> None:
    fails(logs, 2)
    logs.write("worker-0", level="info", event="Checkpoint loaded")
    assert logs.look() == []
    fails(logs, 1)
    assert logs.look() == ["worker-0: Attempt failed, 3 times: no env server"]
    fails(logs, 700)
    assert logs.look() == [], "once a minute"
    assert logs.look(60.0) == []
    fails(logs, 5)
    assert logs.look() == ["worker-0: Attempt failed, 5 times: no env server"]


def test_alarms_are_named_each_once(logs: Logs) -> None:
    for alarm, task in (("entropy", "kg"), ("skipped", ""), ("entropy", "kg")):
        logs.write("trainer", level="warning", event="Alarm raised", alarm=alarm, task=task)
    assert logs.look() == [
        "trainer: Alarm raised, 3 times: entropy of kg, skipped; training goes on (docs/alarms.md)"
    ]


def test_the_place_in_a_users_environment_that_raised_is_told(logs: Logs) -> None:
    fields = {"level": "warning", "event": "Attempt failed", "error": "KeyError: 'x'"}
    for _ in range(3):
        logs.write("worker-0", **fields, raised_at="guess.py:7")
    (line,) = logs.look()
    assert line == "worker-0: Attempt failed, 3 times: KeyError: 'x', raised at guess.py:7"


def test_a_warning_now_and_then_is_not_told_of(logs: Logs) -> None:
    for _ in range(5):
        fails(logs, 1)
        assert logs.look(20.0) == []


def test_an_error_is_told_of_at_once(logs: Logs) -> None:
    said = {
        "level": "error",
        "event": "vLLM is down",
        "reason": "exit code 1",
        "said": "no kernel",
    }
    logs.write("policy-pool", **said)
    assert logs.look() == ["policy-pool: vLLM is down: no kernel"]


def test_a_service_that_is_away_is_told_of_when_it_goes_and_when_it_is_back(logs: Logs) -> None:
    waits = "Waiting for a service that is unavailable"
    logs.write("recorder", level="warning", event=waits, service="store", error="refused")
    assert logs.look() == [f"recorder: {waits}: refused"]
    logs.write("recorder", level="info", event="Service is available again", service="store")
    assert logs.look() == ["recorder: Service is available again: store"]


def test_half_a_line_waits_for_its_end_and_what_is_no_row_is_passed_over(
    logs: Logs, tmp_path: Path
) -> None:
    line = json.dumps({"level": "error", "event": "It broke"})
    log = tmp_path / "trainer.log"
    log.write_text(f"Traceback (most recent call last):\n[1]\n{line[:9]}")
    assert logs.look() == []
    with log.open("a") as file:
        file.write(line[9:] + "\n")
    assert logs.look() == ["trainer: It broke"]
    log.write_text("")  # it was moved aside
    logs.write("trainer", level="error", event="Another")
    assert logs.look() == ["trainer: Another"]
