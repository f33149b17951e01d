"""The verb itself, on Postgres and RabbitMQ: a sound build comes through, a planted bug is found.

The services are shared, so nobody restarts them here.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from running import ROOT, agentrl, eventually, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]

PLANTED = ROOT / "tests" / "support" / "planted"


class Told(NamedTuple):
    """What `agentrl chaos` said: its exit code, its line, and the kinds of its findings."""

    code: int
    line: dict[str, Any]
    kinds: set[str]
    faults: set[str]


@pytest.fixture
def chaos(tmp_path: Path, postgres_url: str, amqp_url: str) -> Callable[..., Told]:
    """Runs the verb over a training without containers; `planted`: in a build that has a bug."""

    def run(*arguments: str, planted: bool = False) -> Told:
        home, log = tmp_path / "home", tmp_path / "log"
        environment = {
            "AGENTRL_POSTGRES_URL": postgres_url,
            "AGENTRL_AMQP_URL": amqp_url,
            "AGENTRL__RUN__HOME": str(home),
            "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
            "AGENTRL__ENVS__URL": "",
            "AGENTRL__TASKS__DBBENCH__OPTIONS__CONTAINER": "false",
            "OMP_NUM_THREADS": "1",
        }
        if planted:
            environment["PYTHONPATH"] = f"{PLANTED}{os.pathsep}{os.environ['PYTHONPATH']}"
        config = str(ROOT / "configs" / "chaos.toml")
        with agentrl("chaos", config, *arguments, environment=environment, output=log) as process:
            eventually(lambda: process.poll() is not None, within_s=720, text=log.read_text)
        assert processes_of(home) == []
        (report,) = home.glob("*/chaos.json")
        told = json.loads(report.read_text())
        print(log.read_text(), file=sys.stderr)
        kinds = {finding["kind"] for finding in told["findings"]}
        faults = {fault["fault"] for fault in told["faults"]}
        line = json.loads(log.read_text().splitlines()[-1])
        return Told(process.returncode, line, kinds, faults)

    return run


def test_a_sound_build_comes_through_with_nothing_lost_and_says_so(
    chaos: Callable[..., Told],
) -> None:
    told = chaos("--kills", "2", "--seed", "2346", "--only", "kill everything")
    assert told.code == 0, told
    assert told.line["kills"] == 2
    assert "kill everything" in told.faults, "all at once, and the same command again"
    assert told.line["updates"] >= 2, "so many follow the last fault, however fast the machine is"
    zeros = ("lost", "trained_twice", "unbalanced", "hangs", "rolled_back", "failed_without_fault")
    assert {name: told.line[name] for name in zeros} == dict.fromkeys(zeros, 0)
    assert told.line["recovery_s"]["max"] >= told.line["recovery_s"]["p50"] >= 0


def test_a_claim_before_its_body_is_found(chaos: Callable[..., Told]) -> None:
    """The model check finds this bug and others (`tests/protocol`): here the verb finds one."""
    told = chaos(*("--kills", "3", "--seed", "1", "--only", "kill worker"), planted=True)
    assert told.code == 1
    assert "claim_without_body" in told.kinds, told
