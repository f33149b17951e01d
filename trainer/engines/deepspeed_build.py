"""Compiles DeepSpeed's CPU optimizer, which `offload` needs, before training.

    build ─▶ lock ─▶ compile in a folder of its own ─▶ the library and its hash, renamed into place
    load  ─▶ the library with that hash, or an error that names the command; nothing is compiled

A killed build leaves a folder that nothing reads. We do not use torch's own loader later, because a
lock file that it leaves behind blocks every later start.
"""

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentrl.checkpoints.directories import write_directory
from agentrl.checkpoints.manifest import file_sha256
from agentrl.core.errors import ConfigError

NAME = "cpu_adam"
FACTS = "built.json"
BUILD_S = 1800.0
KILLED_S = 5.0  # for killed processes to end
COMPILE = """
from deepspeed.ops.op_builder import CPUAdamBuilder
CPUAdamBuilder().load(verbose=False)
"""
HINT = "run `agentrl deepspeed build`"


def build_folder(extensions: str) -> Path:
    """Return the folder of the library for these versions and this CPU, below `extensions`."""
    root = Path(extensions or "~/.cache/agentrl/extensions").expanduser().absolute()
    versions = [importlib.metadata.version(name) for name in ("deepspeed", "torch")]
    built_for = "-".join([*versions, platform.python_version(), _processor()])
    return root / f"{NAME}-{built_for}"


def build_optimizer(extensions: str) -> Path:
    """Compile if needed, one process at a time. Raises ConfigError with the compiler's output."""
    target = build_folder(extensions)
    with _build_lock(target):
        if not _is_complete(target):
            shutil.rmtree(target, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix="agentrl-build-") as scratch:
                library = _compile(Path(scratch))
                with write_directory(target) as partial:
                    shutil.copyfile(library, partial / library.name)
                    facts = {"library": library.name, "sha256": file_sha256(library)}
                    (partial / FACTS).write_text(json.dumps(facts))
    return target


def load_optimizer(extensions: str) -> None:
    """Load the library into DeepSpeed. Raises ConfigError if it is not compiled."""
    from deepspeed.ops.op_builder.builder import OpBuilder

    target = build_folder(extensions)
    if not _is_complete(target):
        raise ConfigError(
            f"trainer.deepspeed.offload: there is no compiled extension in {target}", hint=HINT
        )
    library = target / json.loads((target / FACTS).read_text())["library"]
    spec = importlib.util.spec_from_file_location(NAME, library)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{library} cannot be loaded", hint=HINT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded: dict[str, Any] = OpBuilder._loaded_ops  # noqa: SLF001  # what a build of its own would fill
    loaded[NAME] = module


def is_built(extensions: str) -> bool:
    return _is_complete(build_folder(extensions))


def _compile(scratch: Path) -> Path:
    """Compile the library with DeepSpeed's builder in a separate process."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = os.environ | {
        "DS_ACCELERATOR": "cpu",
        "PATH": tools,  # ninja lies beside the interpreter
        "TORCH_EXTENSIONS_DIR": str(scratch),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILE],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=BUILD_S)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{NAME} was not compiled within {BUILD_S:.0f} s") from error
    finally:
        _kill_session(process.pid)
    if process.returncode:
        lines = [line for line in said.splitlines() if line.strip()]
        words = lines[-1] if lines else f"exit code {process.returncode}"
        raise ConfigError(f"{NAME} cannot be compiled: {words}", hint="install g++ and ninja")
    return next(scratch.rglob(f"{NAME}*.so"))


def _kill_session(session: int) -> None:
    """Kill all processes of a session and wait: ninja gives each compiler its own group."""
    deadline = time.monotonic() + KILLED_S
    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)
    while (members := _live_processes(session)) and time.monotonic() < deadline:
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _live_processes(session: int) -> list[int]:
    """Return the processes of a session, without zombies; none where there is no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended just now
            state, _parent, _group, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if state != "Z" and int(its_session) == session:
                found.append(int(stat.parent.name))
    return found


@contextmanager
def _build_lock(target: Path) -> Iterator[None]:
    """Lock: one build at a time on this machine."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f"{target.name}.lock").open("w")
    except OSError as error:
        raise ConfigError(f"trainer.deepspeed.extensions: {error}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_complete(target: Path) -> bool:
    try:
        facts = json.loads((target / FACTS).read_text())
        return file_sha256(target / facts["library"]) == str(facts["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _processor() -> str:
    """Identify the CPU's instruction set, for which the code is compiled."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:12]
