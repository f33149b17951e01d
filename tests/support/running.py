"""Starting the real command and waiting for what it does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from sqlalchemy.exc import OperationalError

from agentrl.core.errors import StoreError
from agentrl.db.store import open_store
from agentrl.db.transitions import runs

ROOT = Path(__file__).parents[2]


@contextmanager
def agentrl(
    *arguments: str, environment: Mapping[str, str], output: Path, has_own_session: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a user starts it; ended at the end, with its children, whatever happened."""
    with output.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "agentrl.cli.main", *arguments],
            cwd=ROOT,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=has_own_session,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def added_niceness(process: subprocess.Popen[bytes], log: Path) -> int:
    """Wait until a process has another niceness than this one; return the difference."""
    own = os.getpriority(os.PRIO_PROCESS, 0)

    def difference() -> int:
        return os.getpriority(os.PRIO_PROCESS, process.pid) - own

    eventually(difference, within_s=120, text=log.read_text)
    return difference()


def eventually(what: Callable[[], object], *, within_s: float, text: Callable[[], str]) -> None:
    """Wait until `what()` is true; fails with `text()` after so many seconds."""
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, text()
        time.sleep(0.2)


def logs_of(home: Path, log: Path) -> str:
    """What a command printed into `log`, and the ends of the logs of its run's processes."""
    ends = [path.read_text()[-1500:] for path in sorted((home / "logs").glob("*.log"))]
    return "\n".join([log.read_text(), *ends])


def version_of(home: Path, name: str) -> int:
    """Return the version of a run of the embedded store; -1 while there is none."""
    if not (home / "store.db").exists():
        return -1
    try:
        with (
            closing(open_store(f"sqlite:///{home / 'store.db'}")) as store,
            store.read() as session,
        ):
            run = runs.find_run(session, name)
            return run.version if run else -1
    except (StoreError, OperationalError) as error:  # the first process makes the tables
        if not any(words in str(error) for words in ("no such table", "is locked")):
            raise
        return -1


def processes_of(home: Path) -> list[int]:
    """Return live processes whose command line or environment names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            told = (entry / "cmdline").read_bytes()
            with suppress(PermissionError):  # ours forbid inspection, but to root
                told += (entry / "environ").read_bytes()
            zombie = "\nState:\tZ" in (entry / "status").read_text()
        except OSError:
            continue
        if not zombie and str(home).encode() in told:
            found.append(int(entry.name))
    return found


def fakes_of(folder: Path) -> list[int]:
    """Live stand-ins of vLLM (`fake_vllm.py`) that were started for the folder."""
    found = []
    for pid in processes_of(folder):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"fake_vllm.py" in words and b"vllm_guard" not in words:
                found.append(pid)
    return found
