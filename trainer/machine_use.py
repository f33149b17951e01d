"""Use of the trainer's machine: processors, memory and GPUs.

/proc/stat, /proc/meminfo ─┐
nvidia-smi, on a thread   ─┴▶ one reading an update ─▶ updates.metrics (trainer/ledger.py)
"""

import shutil
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
EVERY_S = 10.0  # between two questions to nvidia-smi
ASK_S = 10.0  # for its answer
NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu,memory.used,memory.total",
    "--format=csv,noheader,nounits",
)
Busy = tuple[int, int]  # ticks of all processors: in use, in all


class MachineUse:
    """Measures the use of this machine between two readings."""

    def __init__(
        self, proc: Path = PROC, command: Sequence[str] = NVIDIA_SMI, every_s: float = EVERY_S
    ) -> None:
        """`command`: prints `percent, MiB used, MiB in all` for each GPU."""
        self._proc = proc
        self._busy = self._processors()
        self._command = command
        self._every_s = every_s
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._gpus: list[tuple[float, float]] = []  # share computing, share of memory
        self._thread = threading.Thread(target=self._watch_gpus, name="gpu-use", daemon=True)
        if shutil.which(command[0]):
            self._thread.start()

    def read(self) -> dict[str, float]:
        """Return the use since the previous reading, as shares from 0 to 1; only what is known.

        `cpu_share`: of all processors, by all programs. `gpu_share`: of the time, in which a GPU
        computed. `memory_share`, `gpu_memory_share`: memory in use.
        """
        before, self._busy = self._busy, self._processors()
        found: dict[str, float] = {}
        if before is not None and self._busy is not None and self._busy[1] > before[1]:
            found["cpu_share"] = (self._busy[0] - before[0]) / (self._busy[1] - before[1])
        with suppress(OSError, ValueError, KeyError):
            lines = (self._proc / "meminfo").read_text().splitlines()
            sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
            found["memory_share"] = 1.0 - sizes["MemAvailable"] / sizes["MemTotal"]
        with self._lock:
            rows, self._gpus = self._gpus, []
        if rows:
            shares = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
            found["gpu_share"], found["gpu_memory_share"] = shares
        return found

    def close(self) -> None:
        """End the thread; a question that is under way ends by itself."""
        self._ended.set()

    def _processors(self) -> Busy | None:
        """Read /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal."""
        try:
            with (self._proc / "stat").open() as stat:
                ticks = [int(each) for each in stat.readline().split()[1:9]]
        except (OSError, ValueError):
            return None
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)

    def _watch_gpus(self) -> None:
        while not self._ended.wait(self._every_s):
            rows = self._ask_gpus()
            with self._lock:
                self._gpus += rows

    def _ask_gpus(self) -> list[tuple[float, float]]:
        rows = []
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            told = subprocess.run(
                self._command, capture_output=True, text=True, timeout=ASK_S, check=True
            )
            for line in told.stdout.splitlines():
                with suppress(ValueError, ZeroDivisionError):  # "[N/A]", or a card without memory
                    percent, used, whole = (float(each) for each in line.split(","))
                    rows.append((percent / 100, used / whole))
        return rows
