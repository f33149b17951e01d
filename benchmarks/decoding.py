"""Time of one token of each row in the local engine, bfloat16 on a CPU: by torch's fused attention
kernel over the time with products of all rows.

    python benchmarks/decoding.py [--model models/smollm2] [--rows 8 16 32]
        [--lengths 512 1024 1500] [--threads 1] [--repeats 5] [--json]

`ROWSxLENGTH`: the ratio of the fastest of the passes, which are made in turn.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from agentrl.serving.local.served_model import ServedModel, load_model

TOKEN = 17  # a token: which one makes no difference


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path("models/smollm2"))
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 1500])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON line")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    found = {}
    for rows in chosen.rows:
        for length in chosen.lengths:
            model = load_model(chosen.model, "cpu", torch.bfloat16)
            found[f"{rows}x{length}"] = ratio(model, rows, length, chosen.repeats)
    print(json.dumps(found) if chosen.json else found)


@torch.inference_mode()
def ratio(model: ServedModel, rows: int, length: int, repeats: int) -> float:
    """Return the time with the fused kernel over the time with products."""
    model.cache.reserve(rows, length + 1)  # one more, so that the fused kernel reads rows in part
    widths = {"fused": length, "products": model.cache.keys.shape[3]}
    ids, positions = torch.full((rows, 1), TOKEN), torch.full((rows, 1), length - 1)
    times: dict[str, list[float]] = {name: [] for name in widths}
    for _ in range(repeats + 1):
        for name, width in widths.items():
            began = time.perf_counter()
            model.forward(0, ids, positions, width)
            times[name].append(time.perf_counter() - began)
    fastest = {name: min(each[1:]) for name, each in times.items()}
    return round(fastest["fused"] / fastest["products"], 2)


if __name__ == "__main__":
    main()
