"""Memory and search times of a made-up web shop of the benchmark's size.

    python benchmarks/envs/webshop.py [--products 1180000] [--searches 500] [--folder DIR] [--json]

Building and serving run in a process each. `--folder` keeps the built catalogue: where it is there
already, only serving is measured.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from agentrl.envs.tasks.webshop.large_catalogue import FULL
from agentrl.envs.tasks.webshop.measure_catalogue import in_process


def measure(folder: Path, products: int, searches: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    if not (folder / "shop.json").exists():
        figures |= in_process("build", folder, products)
    return figures | in_process("serve", folder, searches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--products", type=int, default=FULL)
    parser.add_argument("--searches", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="keeps the catalogue; temporary where absent")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        figures = measure(folder, options.products, options.searches)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:>17} {value:>14,.2f}")


if __name__ == "__main__":
    main()
