"""Threads that could all go on, and how long each waits before it asks for Python's lock.

    python benchmarks/lock.py [--threads 1000 2500] [--intervals 0.005 0.1 0.25 1.0] [--json]

Each thread works four times for a fraction of a millisecond, as an episode does between two waits,
then waits for a second: together more than one core can do. `bursts_s`: of four, in 8 s, by a
process that only counts; `cpu_s_s`: processor seconds a second, `system` those in the kernel.
"""

import argparse
import contextlib
import json
import mmap
import os
import signal
import struct
import sys
import threading
import time
from pathlib import Path

WARM_S, MEASURED_S = 7.0, 8.0
TICKS_S = os.sysconf("SC_CLK_TCK")


def work(counts: mmap.mmap, number: int, threads: int, go: threading.Event) -> None:
    """Bursts without end; the first ones are spread over a second."""
    go.wait()
    time.sleep(number / threads)
    done = 0
    while True:
        for _ in range(4):
            sum(range(15_000))
            time.sleep(0.0001)
        done += 1
        struct.pack_into("q", counts, 8 * number, done)
        time.sleep(1.0)


def worked(counts: mmap.mmap, threads: int, interval_s: float) -> None:
    """The process that is measured; it never returns."""
    sys.setswitchinterval(interval_s)
    threading.stack_size(256 * 1024)
    go = threading.Event()
    for number in range(threads):
        threading.Thread(target=work, args=(counts, number, threads, go), daemon=True).start()
    struct.pack_into("q", counts, 8 * threads, 1)
    go.set()
    signal.pause()


def look(counts: mmap.mmap, threads: int, pid: int) -> tuple[int, float, float]:
    """Bursts so far; processor seconds of the process, outside the kernel and in it."""
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    done = sum(struct.unpack_from(f"{threads}q", counts, 0))
    return done, int(stat[11]) / TICKS_S, int(stat[12]) / TICKS_S


def run(threads: int, interval_s: float) -> dict[str, float]:
    counts = mmap.mmap(-1, 8 * threads + 8)  # the last: all have started
    pid = os.fork()
    if pid == 0:
        worked(counts, threads, interval_s)
    try:
        while not counts[8 * threads]:
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                raise SystemExit(f"{threads} threads could not be started")
            time.sleep(0.1)
        time.sleep(WARM_S)
        began, before = time.monotonic(), look(counts, threads, pid)
        time.sleep(MEASURED_S)
        after, seconds = look(counts, threads, pid), time.monotonic() - began
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    done, user, system = ((b - a) / seconds for a, b in zip(before, after, strict=True))
    return {
        "threads": threads,
        "interval_s": interval_s,
        "bursts_s": round(done, 1),
        "cpu_s_s": round(user + system, 2),
        "system": round(system, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1000, 2500])
    parser.add_argument("--intervals", type=float, nargs="+", default=[0.005, 0.1, 0.25, 1.0])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = []
    for threads in given.threads:
        for interval_s in given.intervals:
            found.append(run(threads, interval_s))
            print(found[-1], flush=True)
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
