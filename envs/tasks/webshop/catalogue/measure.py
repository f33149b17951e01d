"""A catalogue of the benchmark's size, measured: how long it is built, what serving it takes.

    python -m agentrl.envs.tasks.webshop.catalogue.measure build FOLDER PRODUCTS  one line of JSON
    python -m agentrl.envs.tasks.webshop.catalogue.measure serve FOLDER SEARCHES

Each runs in a process of its own, so that its memory is its own.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from agentrl.envs.tasks.webshop.catalogue import large
from agentrl.envs.tasks.webshop.catalogue.catalogue import build, open_folder
from agentrl.envs.tasks.webshop.shop import FOUND, PAGE

MIB = 1 << 20
WARM = 20  # searches before the measured ones

Figures = dict[str, float]


def in_process(verb: str, folder: Path, count: int) -> Figures:
    """The figures of a verb, run in a fresh process. Raises CalledProcessError."""
    command = [sys.executable, "-m", __name__, verb, str(folder), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def building(folder: Path, products: int) -> Figures:
    """Seconds and largest resident memory of a build, and the folder's size; MiB."""
    started = time.perf_counter()
    build(large.products(products), folder)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in folder.rglob("*"))
    return {"build_s": seconds, "build_peak_mib": peak_mib(), "folder_mib": size / MIB}


def serving(folder: Path, searches: int) -> Figures:
    """Seconds to open, results and ms of a search, of a processor, with its first page; memory."""
    texts = large.queries(searches + WARM)
    started = time.perf_counter()
    shop = open_folder(folder)
    opened = time.perf_counter() - started
    found, worked, shown, results = [], [], [], 0
    for text in texts:
        begun, before = time.perf_counter(), time.process_time()
        ids = shop.find(text, FOUND)
        searched, after = time.perf_counter(), time.process_time()
        for asin in ids[:PAGE]:
            shop.product(asin)
        results += len(ids)
        found.append(1000 * (searched - begun))
        worked.append(1000 * (after - before))
        shown.append(1000 * (time.perf_counter() - begun))
    ranked = sorted(found[WARM:])
    return {
        "products": len(shop),
        "open_s": opened,
        "results": results / len(texts),
        "search_p50_ms": statistics.median(ranked),
        "search_cpu_p50_ms": statistics.median(worked[WARM:]),
        "search_p95_ms": ranked[int(0.95 * len(ranked))],
        "page_p50_ms": statistics.median(shown[WARM:]),
        "pss_mib": proportional_mib(),
        "peak_mib": peak_mib(),
    }


def peak_mib() -> float:
    """Largest resident memory so far, files that are mapped included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def proportional_mib() -> float:
    """Resident memory, shared pages divided among those that share them."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    verb, folder, count = sys.argv[1:]
    run = {"build": building, "serve": serving}[verb]
    figures = run(Path(folder), int(count))
    sys.stdout.write(json.dumps({name: round(value, 2) for name, value in figures.items()}) + "\n")


if __name__ == "__main__":
    main()
