"""Memory and search times of a made-up web shop of the benchmark's size.

    python benchmarks/webshop.py [--products 1180000] [--searches 500] [--folder DIR]

Building and serving run in a process each, so that their memory is their own. `--folder` keeps the
built catalogue: where it is there already, only serving is measured.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import large_catalogue
import psutil

from agentrl.envs.tasks.webshop.catalogue.catalogue import build, open_folder
from agentrl.envs.tasks.webshop.shop import FOUND, PAGE

FULL = 1_180_000  # products of the benchmark
MIB = 1 << 20
WARM = 20  # searches before the measured ones

Figures = dict[str, float]
Step = Callable[[Path, int], Figures]


def measure(folder: Path, products: int, searches: int) -> Figures:
    figures: Figures = {}
    steps: list[tuple[Step, int]] = [(serving, searches)]
    if not (folder / "shop.json").exists():
        steps.insert(0, (building, products))
    for step, count in steps:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            figures |= process.submit(step, folder, count).result()
    return figures


def building(folder: Path, products: int) -> Figures:
    """Seconds and largest resident memory of a build, and the folder's size; MiB."""
    started = time.perf_counter()
    build(large_catalogue.products(products), folder)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in folder.rglob("*"))
    return {"build_s": seconds, "build_peak_mib": peak_mib(), "folder_mib": size / MIB}


def serving(folder: Path, searches: int) -> Figures:
    """Seconds to open, results and ms of a search, of a processor, with its first page; memory."""
    texts = large_catalogue.queries(searches + WARM)
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
        "pss_mib": psutil.Process().memory_full_info().pss / MIB,
        "peak_mib": peak_mib(),
    }


def peak_mib() -> float:
    """Largest resident memory so far, files that are mapped included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--products", type=int, default=FULL)
    parser.add_argument("--searches", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="keeps the catalogue; temporary where absent")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        figures = measure(folder, options.products, options.searches)
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
