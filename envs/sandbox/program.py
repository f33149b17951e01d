"""The program that runs in a container: a zip archive sent over stdin, with its limits."""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

BOOT = """
import os, runpy, sys
left, file = int(sys.argv[1]), os.memfd_create("program")
while left:
    part = os.read(0, min(left, 65536)) or sys.exit("hung up on before the program was whole")
    left -= os.write(file, part)
runpy.run_path(f"/proc/self/fd/{file}", run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A container's main process. `stdin`: input sent before the first question."""

    argv: tuple[str, ...]
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """How to get an image that the engine lacks. `folder`: with its Dockerfile; None: not at all.

    `timeout_s`: seconds of wall clock for the build.
    """

    folder: Path | None
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one container, which has no swap. `cpus`: cores.

    `network`: `bridge` is the engine's own; on `internal` only this machine is reached, and reaches
    it.

    `root`: its processes run as root with only these `capabilities`, and the main process is PID 1,
    which no signal from inside reaches; otherwise they run as nobody, below an init. `disk_bytes`:
    of a writable root; 0: read-only. `tmpfs_bytes`: of a non-executable /tmp in memory; 0: none.
    """

    memory_bytes: int = 256 << 20
    cpus: float = 1.0
    pids: int = 64
    tmpfs_bytes: int = 32 << 20
    root: bool = False
    capabilities: tuple[str, ...] = ()
    disk_bytes: int = 0
    network: Literal["none", "bridge", "internal"] = "none"


OS = SandboxLimits(
    memory_bytes=1 << 30,
    cpus=2.0,
    pids=256,
    tmpfs_bytes=0,
    root=True,
    capabilities=("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL"),
    disk_bytes=512 << 20,
)


def python_program(main: str, modules: Sequence[str]) -> Program:
    """`main` run as a script, with `modules` to import: dotted names, standard library only.

    The image needs python3 (3.11 or newer); no file of it is written.
    """
    packages = {
        name.rsplit(".", depth)[0] for name in modules for depth in range(1, name.count(".") + 1)
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__main__.py", _source(main))
        for package in sorted(packages):
            archive.writestr(f"{package.replace('.', '/')}/__init__.py", "")
        for name in modules:
            archive.writestr(f"{name.replace('.', '/')}.py", _source(name))
    content = buffer.getvalue()
    return Program(("python3", "-I", "-c", BOOT, str(len(content))), content)


def _source(module: str) -> bytes:
    package, _, name = module.rpartition(".")
    return resources.files(package).joinpath(f"{name}.py").read_bytes()
