"""Time of one token of each row in the local engine, bfloat16 on a CPU: by torch's fused attention
kernel over the time with products of all rows; and how far both are from float32.

    python benchmarks/decoding.py [--model models/smollm2] [--rows 8 16 32]
        [--lengths 512 1024 1500] [--threads 1] [--repeats 5]

`ROWSxLENGTH`: the ratio of the fastest of the passes, which are made in turn. `fused`, `products`:
mean |Δ log p| to transformers in float32 of the last 150 of 800 tokens of our pages, one by one.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.serving.local.served_model import ServedModel, load_model

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CHANGELOG.md", "docs/credit.md", "docs/architecture.md")
TOKENS, SINGLE = 800, 150
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
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    found = {}
    for rows in chosen.rows:
        for length in chosen.lengths:
            model = load_model(chosen.model, "cpu", torch.bfloat16)
            found[f"{rows}x{length}"] = ratio(model, rows, length, chosen.repeats)
    found |= distances(chosen.model)
    print(json.dumps(found))


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


@torch.inference_mode()
def distances(path: Path) -> dict[str, float]:
    """Return the mean distance to float32 of the log-probabilities of known tokens."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = [(ROOT / page).read_text() for page in PAGES]
    ids = torch.tensor([tokenizer(text).input_ids[:TOKENS] for text in texts])
    exact: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    expected = logprobs(exact(ids).logits[:, -SINGLE - 1 : -1], ids[:, -SINGLE:])
    model = load_model(path, "cpu", torch.bfloat16)
    model.cache.reserve(len(ids), TOKENS + 1)
    found = {}
    for name in ("fused", "products"):
        start = TOKENS - SINGLE - 1
        positions = torch.arange(TOKENS).repeat(len(ids), 1)
        model.forward(0, ids[:, :start], positions[:, :start], start)
        rows = []
        for at in range(start, TOKENS - 1):
            wide = model.cache.decoding_width(len(ids), at + 1)
            here = slice(at, at + 1)
            width = wide if name == "products" else at + 1
            rows.append(model.forward(0, ids[:, here], positions[:, here], width))
        own = logprobs(torch.stack(rows, dim=1), ids[:, -SINGLE:])
        found[name] = round((own - expected).abs().mean().item(), 4)
    return found


def logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of tokens [n, T], by logits [n, T, V]."""
    return torch.log_softmax(logits.float(), dim=-1).gather(-1, tokens[..., None])[..., 0]


if __name__ == "__main__":
    main()
