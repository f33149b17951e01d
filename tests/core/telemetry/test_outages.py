"""What a process says of a service that is away is read back from its log."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.core import logging
from agentrl.core.telemetry.outages import (
    MAX_BYTES,
    STALE_S,
    Outage,
    current_outages,
    read_outages,
    report_available,
    report_away,
)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The log of a trainer, which the test writes, and one that is not there."""
    path = tmp_path / "trainer.log"
    with path.open("w") as log:
        monkeypatch.setattr("sys.stderr", log)
        logging.configure("trainer", form="json")
        yield [path, tmp_path / "worker-0.log"]


def test_what_a_process_waits_for_is_known_until_it_is_available(logs: list[Path]) -> None:
    report_away("store", 0.0, "refused")
    report_away("broker consumer", 3.04, "no route")
    report_away("store", 60.02, "still refused\nsee page 3")
    assert read_outages(logs) == [
        Outage("trainer", "broker consumer", 3.0, "no route"),
        Outage("trainer", "store", 60.0, "still refused"),
    ]
    assert str(read_outages(logs)[1]) == "trainer waits for store (60 s): still refused"
    report_available("store", 70.0)
    assert [each.service for each in read_outages(logs)] == ["broker consumer"]


def test_a_process_knows_what_it_waits_for_until_it_is_available() -> None:
    def found() -> list[Outage]:
        return [each for each in current_outages("worker") if each.service == "library"]

    report_away("library", 7.0, "no route")
    (outage,) = found()
    assert (outage.process, outage.error) == ("worker", "no route")
    assert outage.waited_s >= 7.0
    report_available("library", 8.0)
    assert found() == []


def test_an_outage_of_which_nothing_was_said_for_long_is_not_reported(logs: list[Path]) -> None:
    report_away("store", 0.0, "refused")
    assert read_outages(logs, time.time() + STALE_S / 2) != []
    assert read_outages(logs, time.time() + STALE_S + 1.0) == []


def test_an_outage_of_a_run_is_not_one_of_another_run_of_the_same_home(logs: list[Path]) -> None:
    report_away("library", 1.0, "of no run")
    logging.bind_process(run="theirs")
    report_away("store", 3.0, "refused")
    logging.bind_process(run="mine")
    report_away("broker", 4.0, "refused")
    assert [each.service for each in read_outages(logs)] == ["library", "store", "broker"]
    assert [each.service for each in read_outages(logs, run="mine")] == ["library", "broker"]
    assert [each.service for each in read_outages(logs, run="theirs")] == ["library", "store"]


def test_lines_that_are_cut_or_of_another_program_are_passed_over(logs: list[Path]) -> None:
    report_away("store", 0.0, "refused")
    said = logs[0].read_text()
    others = "x" * MAX_BYTES + "\n" + said[9:] + '"Service is available again"\n[]\n\n{}\n'
    logs[0].write_text(others + said.replace("store", "checkpoints"))
    assert [each.service for each in read_outages(logs)] == ["checkpoints"]
