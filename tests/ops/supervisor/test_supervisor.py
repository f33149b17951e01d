"""Supervisors over real, tiny processes."""

import ast
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import eventually

from agentrl.core import config_loading
from agentrl.core.errors import AgentRLError
from agentrl.ops.supervisor import exit_reasons
from agentrl.ops.supervisor.children import Child, children
from agentrl.ops.supervisor.locks import running_supervisor
from agentrl.ops.supervisor.restarts import AWAY, Pace
from agentrl.ops.supervisor.supervisor import Settings, Supervisor

PACE = Pace(back_off_s=(0.0, 0.0), steady_s=60.0)
STANDS = Pace(back_off_s=(0.0, 0.0), steady_s=-1.0)
FOR_EVER = "import time; time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); {FOR_EVER}"

Begin = Callable[..., Supervisor]


def python(name: str, program: str, phase: int = 0) -> Child:
    return Child(name, [sys.executable, "-uc", program], phase)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def begin(tmp_path: Path, told: list[str]) -> Iterator[Begin]:
    """Start a supervisor of the home `tmp_path`."""
    begun = []

    def start(*all_children: Child, pace: Pace = PACE, **more: Any) -> Supervisor:
        settings = Settings(pace, **more)
        supervisor = Supervisor(tmp_path, "first", all_children, told.append, settings)
        begun.append(supervisor)
        supervisor.start()
        return supervisor

    yield start
    for supervisor in begun:
        supervisor.stop()


def polled(supervisor: Supervisor, until: Callable[[], object]) -> None:
    """Poll until something is so."""

    def look() -> object:
        supervisor.poll()
        return until()

    eventually(look, within_s=60, text=lambda: "never so")


def test_a_second_supervisor_is_refused_and_the_first_untouched(
    tmp_path: Path, begin: Begin
) -> None:
    first = begin(python("one", FOR_EVER))
    written = (tmp_path / "processes.json").read_text()
    with pytest.raises(AgentRLError, match=rf"pid {os.getpid()}\) of run first already"):
        begin(python("two", FOR_EVER))
    second = Supervisor(tmp_path, "second", [], print)
    with pytest.raises(AgentRLError):
        second.start()
    second.stop()
    assert (tmp_path / "processes.json").read_text() == written
    assert running_supervisor(tmp_path) == os.getpid()
    assert running_supervisor(tmp_path, "first") == os.getpid()
    assert running_supervisor(tmp_path, "second") is None
    first.poll()
    assert first.pids().keys() == {"one"}
    first.stop()
    assert running_supervisor(tmp_path) is None
    begin(python("three", FOR_EVER))


def test_a_killed_process_is_started_again_and_told_of(
    tmp_path: Path, begin: Begin, told: list[str]
) -> None:
    child = python("one", "print('here I am'); " + FOR_EVER)
    supervisor = begin(child)
    eventually((tmp_path / "logs" / "one.log").read_text, within_s=60, text=str)
    old = supervisor.pids()["one"]
    os.kill(old, signal.SIGKILL)
    polled(supervisor, lambda: supervisor.pids().get("one", old) != old)
    assert told == ["one was killed (SIGKILL; out of memory?); restarting"]
    row = json.loads((tmp_path / "processes.json").read_text())["processes"]["one"]
    assert row == {"pid": supervisor.pids()["one"], "restarts": 1, "done": False, "metrics": 0}


def test_a_process_whose_log_was_deleted_is_started_again(
    tmp_path: Path, begin: Begin, told: list[str]
) -> None:
    log = tmp_path / "logs" / "one.log"
    program = f"import os; os.unlink({str(log)!r}); raise SystemExit(1)"
    supervisor = begin(python("one", program))
    polled(supervisor, lambda: told)
    assert told[0] == (
        "one exited with code 1; restarting; last line of its log: the log cannot be read: "
        "No such file or directory"
    )


def test_each_start_has_a_name_and_the_next_one_is_told_it(tmp_path: Path, begin: Begin) -> None:
    names = "os.environ['AGENTRL_INSTANCE'], os.environ['AGENTRL_FORMER_INSTANCE']"
    supervisor = begin(python("named", f"import os; print(({names})); {FOR_EVER}"))
    log = tmp_path / "logs" / "named.log"

    def starts() -> list[str]:
        return log.read_text().splitlines()

    for count in (1, 2):
        polled(supervisor, lambda count=count: len(starts()) == count)
        os.kill(supervisor.pids()["named"], signal.SIGKILL)
    polled(supervisor, lambda: len(starts()) == 3)
    told = [ast.literal_eval(line) for line in starts()]
    assert [former for _, former in told] == ["", told[0][0], told[1][0]]
    assert len({name for name, _ in told}) == 3


@pytest.mark.parametrize(
    ("code", "told", "cause"),
    [
        (1, "exited with code 1; restarting; last line of its log: no store", "no store"),
        (-15, "was stopped by SIGTERM; restarting", "was stopped by SIGTERM"),
        (-11, "was stopped by SIGSEGV; restarting; last line of its log: no store", "no store"),
        (-40, "was stopped by signal 40; restarting; last line of its log: no store", "no store"),
    ],
)
def test_the_end_of_a_log_is_told_where_it_may_be_the_cause(
    code: int, told: str, cause: str
) -> None:
    assert exit_reasons.restart_line(code, "no store") == told
    assert exit_reasons.cause(code, "no store") == cause


def test_a_full_disk_is_told_with_the_place_and_nothing_half_written_stays(
    tmp_path: Path, begin: Begin
) -> None:
    partial = tmp_path / "processes.json.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(AgentRLError, match="No space left on device") as refused:
        begin(python("one", FOR_EVER))
    assert str(tmp_path) in str(refused.value)
    assert refused.value.hint == "free space there and run the same command to continue"
    assert not partial.is_symlink()


def test_a_disk_that_is_full_while_a_process_is_started_again_ends_nothing(
    tmp_path: Path, begin: Begin, told: list[str]
) -> None:
    child, partial = python("one", f"raise SystemExit({AWAY})"), tmp_path / "processes.json.partial"
    supervisor = begin(child, python("other", FOR_EVER))
    written = (tmp_path / "processes.json").read_text()

    def restarted_on_a_full_disk() -> bool:
        if not partial.is_symlink():
            partial.symlink_to("/dev/full")
        return child.restarts > 2

    restarted_on_a_full_disk()
    polled(supervisor, restarted_on_a_full_disk)
    assert "other" in supervisor.pids()
    assert (tmp_path / "processes.json").read_text() == written
    former = "`agentrl status` shows former processes, not the present ones"
    assert told[1:] == [f"{former}: {tmp_path}: No space left on device"]
    partial.unlink()
    supervisor.poll()
    row = json.loads((tmp_path / "processes.json").read_text())["processes"]["one"]
    assert row["restarts"] == child.restarts


def test_a_process_whose_log_cannot_be_opened_is_started_once_it_can(
    tmp_path: Path, begin: Begin, told: list[str]
) -> None:
    """A socket cannot be opened: "No such device or address", as of a disk that is away."""
    log = tmp_path / "logs" / "one.log"
    child = python("one", f"import os; print(os.environ['AGENTRL_FORMER_INSTANCE']); {FOR_EVER}")
    supervisor = begin(child)
    eventually(log.exists, within_s=60, text=str)
    first = child.instance
    log.unlink()
    with socket.socket(socket.AF_UNIX) as away:
        away.bind(str(log))
        os.kill(supervisor.pids()["one"], signal.SIGKILL)
        polled(supervisor, lambda: child.restarts > 2)
    assert child.process is None
    waits = "one is restarted until what it needs is available: [Errno 6] No such device or address"
    assert told[1:] == [f"{waits}: '{log}'"]
    log.unlink()
    polled(supervisor, lambda: "one" in supervisor.pids())
    assert first is not None
    eventually(lambda: log.read_text() == f"{first.name}\n", within_s=60, text=log.read_text)


def test_a_process_that_needs_a_person_to_start_ends_all(tmp_path: Path, begin: Begin) -> None:
    child = python("one", FOR_EVER)
    child.command = [str(tmp_path / "absent")]
    with pytest.raises(AgentRLError, match=r"one cannot be started: .*No such file"):
        begin(child)


def test_back_off_keeps_a_process_down_for_a_while(begin: Begin) -> None:
    child = python("one", "raise SystemExit(1)")
    supervisor = begin(child, pace=Pace(back_off_s=(60.0,)))
    polled(supervisor, lambda: child.deaths.count == 1)
    supervisor.poll()
    assert child.process is None
    assert child.restarts == 0


def test_exit_code_0_while_the_run_goes_on_is_a_death(begin: Begin) -> None:
    child = python("dispatcher", "")
    supervisor = begin(child, pace=STANDS)
    polled(supervisor, lambda: child.restarts >= 2)
    assert not child.done


def test_exit_code_0_after_the_run_is_the_end(
    tmp_path: Path, begin: Begin, told: list[str]
) -> None:
    over = tmp_path / "over"
    early = python("trainer", "")
    waits = f"import os, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.05)"
    late = python("dispatcher", waits)
    supervisor = begin(early, late, pace=Pace(back_off_s=(60.0,)))
    polled(supervisor, lambda: early.deaths.count == 1)
    supervisor.run_is_over()
    over.touch()
    polled(supervisor, lambda: late.done)
    assert early.done
    assert supervisor.pids() == {}
    assert told == []


def test_a_clear_error_at_start_ends_all_with_its_words(begin: Begin) -> None:
    ill = python("ill", "import sys; sys.exit(print('agentrl: no such model') or 2)")
    well = python("well", FOR_EVER)
    supervisor = begin(ill, well)
    with pytest.raises(AgentRLError, match=r"^ill: no such model$"):
        polled(supervisor, lambda: False)
    process = well.process
    assert process is not None
    supervisor.stop()
    assert process.poll() == -signal.SIGTERM


def test_a_clear_error_of_one_that_stood_is_a_death_and_a_replaced_one_is_final(
    begin: Begin,
) -> None:
    ill = python("ill", "raise SystemExit(2)")
    supervisor = begin(ill, pace=STANDS)
    polled(supervisor, lambda: ill.restarts == 1)
    supervisor.stop()
    replaced = python("trainer", "import sys; print('taken'); sys.exit(3)")
    supervisor = begin(replaced, pace=STANDS)
    with pytest.raises(AgentRLError, match="trainer: taken"):
        polled(supervisor, lambda: replaced.restarts)


def test_one_that_never_stands_ends_the_supervisor(begin: Begin) -> None:
    never = python("never", "raise SystemExit('no store')")
    supervisor = begin(never)
    with pytest.raises(
        AgentRLError, match="never died 3 times without progress in the run: no store"
    ):
        polled(supervisor, lambda: False)
    assert never.restarts == len(PACE.back_off_s)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_one_that_stands_and_dies_without_progress_of_the_run_is_given_up(begin: Begin) -> None:
    clock, progress = Clock(), iter([5, 9, *[9] * 20])
    child = python("trainer", "raise SystemExit('disk full')")
    pace = Pace(back_off_s=(0.0, 0.0), steady_s=15.0, give_up_s=600.0)
    supervisor = begin(child, pace=pace, clock=clock, progress_of=lambda _name: next(progress))

    def lives(seconds: float) -> None:
        process = child.process
        assert process is not None
        process.wait(60)
        clock.now += seconds
        supervisor.poll()

    lives(20.0)
    for _ in range(3):  # it made progress before the first of these
        supervisor.poll()
        lives(250.0)
    assert child.deaths.count == 3
    supervisor.poll()
    with pytest.raises(
        AgentRLError, match="trainer died 4 times without progress in the run: disk"
    ):
        lives(250.0)


def test_one_that_waits_for_a_service_is_started_again_for_ever_and_told_of_once(
    begin: Begin, told: list[str]
) -> None:
    child = python(
        "recorder", f"print('agentrl: store x is unreachable'); raise SystemExit({AWAY})"
    )
    supervisor = begin(child, python("other", FOR_EVER))
    polled(supervisor, lambda: child.restarts > 2 * len(PACE.back_off_s))
    waits = "recorder is restarted until what it needs is available: store x is unreachable"
    assert told == [waits]
    assert child.deaths.count == 0


def test_a_deaf_process_is_killed_but_the_last_bodies_are_waited_for(
    tmp_path: Path, begin: Begin, told: list[str]
) -> None:
    stored = tmp_path / "stored"
    slow = "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: None); print('up')"
    waits = f"while not os.path.exists({str(stored)!r}): time.sleep(0.05)"
    recorder = python("recorder", f"{slow}\n{waits}\nprint('stored')", phase=1)
    worker = python("worker", DEAF)
    recorder.stop_s = worker.stop_s = 0.2
    supervisor = begin(worker, recorder)
    for name in ("worker", "recorder"):
        eventually((tmp_path / "logs" / f"{name}.log").read_text, within_s=60, text=str)
    supervisor.run_is_over()
    threading.Timer(1.0, stored.touch).start()
    supervisor.stop()
    assert (tmp_path / "logs" / "recorder.log").read_text().endswith("stored\n")
    assert told == ["worker did not stop within 0.2 s and was killed"]


def test_one_that_is_killed_while_the_run_is_not_over_is_told_of_with_what_that_means(
    tmp_path: Path, begin: Begin, told: list[str]
) -> None:
    trainer, worker = python("trainer", DEAF), python("worker-0", DEAF)
    trainer.stop_s = worker.stop_s = 0.2
    supervisor = begin(trainer, worker)
    for name in ("trainer", "worker-0"):
        eventually((tmp_path / "logs" / f"{name}.log").read_text, within_s=60, text=str)
    supervisor.stop()
    killed = "did not stop within 0.2 s and was killed"
    redone = "updates since its last snapshot will be trained again"
    assert told == [f"trainer {killed}; {redone}", f"worker-0 {killed}"]


def test_a_trainer_has_the_time_that_its_file_gives_it_to_save() -> None:
    config = config_loading.loads("[tasks.dbbench]\n[trainer]\nstop_s = 90.0")
    patience = {child.name: child.stop_s for child in children(config, Path("x.toml"))}
    assert patience == {
        "policy-policy": 5.5,
        "recorder": 5.5,
        "trainer": 90.0,
        "worker-0": 5.5,
        "dispatcher": 5.5,
    }


def test_a_log_that_has_grown_is_moved_aside_while_its_process_writes(
    tmp_path: Path, begin: Begin
) -> None:
    clock = Clock()
    loud = python("loud", "import time\nwhile True: print('x' * 99); time.sleep(0.001)")
    supervisor = begin(loud, clock=clock, log_bytes=20_000)
    log, former = tmp_path / "logs" / "loud.log", tmp_path / "logs" / "loud.log.1"
    for _ in range(2):
        eventually(lambda: log.stat().st_size > 20_000, within_s=60, text=str)
        clock.now += 10.0
        supervisor.poll()
        assert former.stat().st_size > 20_000
        eventually(lambda: log.stat().st_size > 0, within_s=60, text=str)
    assert not log.read_bytes().startswith(b"\0"), "it goes on at the beginning of the file"


def test_an_env_server_of_another_machine_is_not_started() -> None:
    def names(url: str) -> list[str]:
        config = config_loading.loads(f'[tasks.dbbench]\n[envs]\nurl = "{url}"')
        return [child.name for child in children(config, Path("x.toml"))]

    own = socket.gethostname()
    for here in ("127.0.0.1", "localhost", "[::1]", own):
        assert "envs" in names(f"http://{here}:7100")
    for elsewhere in ("http://10.1.2.3:7100", "http://envs.example:7100", ""):
        assert "envs" not in names(elsewhere)


def test_each_process_is_told_a_port_of_its_own_for_its_metrics(
    tmp_path: Path, begin: Begin
) -> None:
    more = '[eval]\nevery = 1\n[trackers]\nuse = ["tensorboard"]'
    config = config_loading.loads(f"workers = 2\n[tasks.dbbench]\n[metrics]\nport = 9300\n{more}")
    ports = {child.name: child.metrics for child in children(config, Path("x.toml"))}
    assert ports == {
        "policy-policy": 9301,
        "recorder": 9302,
        "trainer": 9303,
        "worker-0": 9304,
        "worker-1": 9305,
        "evaluator": 9306,
        "dispatcher": 9307,
        "tracker": 9308,
    }
    none = children(config_loading.loads("[tasks.dbbench]"), Path("x.toml"))
    assert {child.metrics for child in none} == {0}
    echo = python("echo", f"import os; print(os.environ['AGENTRL__METRICS__PORT']); {FOR_EVER}")
    echo.metrics = 9307
    begin(echo)
    log = tmp_path / "logs" / "echo.log"
    eventually(lambda: log.read_text() == "9307\n", within_s=60, text=log.read_text)
    state = json.loads((tmp_path / "processes.json").read_text())
    assert state["processes"]["echo"]["metrics"] == 9307


@pytest.mark.parametrize("code", [1, 2])
def test_the_others_go_on_without_what_is_not_needed(
    begin: Begin, told: list[str], code: int
) -> None:
    spare = python("spare", f"import sys; print('agentrl: no room'); sys.exit({code})")
    spare.needed = False
    supervisor = begin(spare, python("other", FOR_EVER))
    polled(supervisor, lambda: spare.done)
    polled(supervisor, lambda: "other" in supervisor.pids())
    assert told[-1].startswith("spare")
    assert told[-1].endswith("no room; the run continues without it")


def test_a_child_that_waits_for_a_policy_server_starts_once_that_serves(
    begin: Begin, told: list[str]
) -> None:
    serving: set[str] = set()
    waiting = python("trainer", FOR_EVER)
    waiting.after = ["big", "small"]
    supervisor = begin(waiting, python("other", FOR_EVER), serves=serving.__contains__)
    assert told == ["trainer starts once these policies are served: big, small"]
    serving.add("big")
    supervisor.poll()
    assert set(supervisor.pids()) == {"other"}
    serving.add("small")
    supervisor.poll()
    assert set(supervisor.pids()) == {"other", "trainer"}
    assert waiting.restarts == 0


CARD = """
[model]
device = "cuda"
[trainer]
engine = "deepspeed"
ranks = 2
[tasks.dbbench]
[[policy]]
name = "beside"
engine = "vllm"
vllm.env = { CUDA_VISIBLE_DEVICES = "1" }
[[policy]]
name = "apart"
engine = "vllm"
vllm.env = { CUDA_VISIBLE_DEVICES = "2" }
"""


def test_a_trainer_waits_for_the_vllm_servers_of_its_own_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no nvidia-smi
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    path = tmp_path / "c.toml"
    path.write_text(CARD)
    found = {child.name: child.after for child in children(config_loading.load(path), path)}
    assert found.pop("trainer") == ["beside"]
    assert not any(found.values())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    found = {child.name: child.after for child in children(config_loading.load(path), path)}
    assert found["trainer"] == ["apart"]
    path.write_text(CARD.replace('"cuda"', '"cpu"'))
    assert not any(child.after for child in children(config_loading.load(path), path))
