"""Tokens per second of the local engine against `generate` and, if asked, vLLM, in one run.

    python benchmarks/engine.py [--model DIR] [--dtype float32] [--device cpu]
        [--concurrent 1 16 64] [--prompt 60] [--vllm PYTHON]

All continue prompts of the same lengths with the same weights on one thread, in two ways:

episodes  as episodes ask: lengths differ, requests join and leave, turns reuse their prefix.
          `generate` plays them in step: at each turn it reads every history, padded to the longest,
          and samples until the longest answer of the turn is done
steps     one turn of equal lengths, all at once

`episodes_vs_generate`, `episodes_vs_vllm`, `steps_vs_generate`: ratios of the engine's speed.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from helpers.random_models import make_model
from transformers import AutoModelForCausalLM

from agentrl.core.config.sections.policies import Model, Vllm
from agentrl.serving.engine_api import Completion, Engine, Request
from agentrl.serving.local.engine import LocalEngine

if TYPE_CHECKING:
    from agentrl.serving.vllm.engine import VllmEngine

PROMPT, OBSERVATION, SAMPLED, TURNS = 60, 16, 20, 6  # tokens; turns of an episode
auto: Any = AutoModelForCausalLM


class Completes(Protocol):
    """What answers requests: an engine, or calls of one."""

    def submit(self, request: Request) -> Future[Completion]: ...


def episodes(engine: Completes, vocabulary: int, concurrent: int, prompt: int = PROMPT) -> float:
    """Sampled tokens per second over that many episodes at once."""
    rng = random.Random(concurrent)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(count)]

    pending: dict[Future[Completion], tuple[Request, int]] = {}

    def ask(prompt: list[int], session: str, turn: int) -> None:
        request = Request("policy", prompt, rng.randint(SAMPLED // 2, SAMPLED), session=session)
        pending[engine.submit(request)] = request, turn

    sampled, started = 0, time.perf_counter()
    for number in range(concurrent):
        ask(tokens(prompt), f"{concurrent}-{number}", 1)
    while pending:
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            request, turn = pending.pop(future)
            answer = future.result().token_ids
            sampled += len(answer)
            if turn < TURNS:
                history = request.prompt + answer + tokens(OBSERVATION)
                ask(history, request.session, turn + 1)
    return sampled / (time.perf_counter() - started)


def steps(engine: Engine, vocabulary: int, concurrent: int, length: int) -> float:
    """Sampled tokens per second of equal requests that begin and end together."""
    prompts = equal_prompts(vocabulary, concurrent)
    started = time.perf_counter()
    wait([engine.submit(Request("policy", prompt, length)) for prompt in prompts])
    return concurrent * length / (time.perf_counter() - started)


def generate(model: Any, concurrent: int, length: int) -> float:
    """The same by transformers."""
    started = time.perf_counter()
    _continue(model, equal_prompts(model.config.vocab_size, concurrent), length)
    return concurrent * length / (time.perf_counter() - started)


def generate_episodes(model: Any, concurrent: int, prompt: int = PROMPT) -> float:
    """Wanted tokens per second over that many episodes, which take their turns together."""
    rng, vocabulary = random.Random(concurrent), model.config.vocab_size

    def tokens(count: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(count)]

    histories = [tokens(prompt) for _ in range(concurrent)]
    sampled, started = 0, time.perf_counter()
    for _ in range(TURNS):
        wanted = [rng.randint(SAMPLED // 2, SAMPLED) for _ in histories]
        answers = _continue(model, histories, max(wanted))
        for history, answer, count in zip(histories, answers, wanted, strict=True):
            history.extend(answer[:count] + tokens(OBSERVATION))
        sampled += sum(wanted)
    return sampled / (time.perf_counter() - started)


def _continue(model: Any, prompts: list[list[int]], length: int) -> list[list[int]]:
    """Sample so many tokens after each prompt, padded on the left."""
    width = max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    found = model.generate(
        torch.tensor(ids, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        max_new_tokens=length,
        do_sample=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    answers: list[list[int]] = found[:, width:].tolist()
    return answers


def equal_prompts(vocabulary: int, concurrent: int) -> list[list[int]]:
    rng = random.Random(concurrent)
    return [[rng.randrange(vocabulary) for _ in range(PROMPT)] for _ in range(concurrent)]


def measure(
    chosen: Model, concurrent: list[int], length: int, prompt: int, vllm: Engine | None
) -> list[dict[str, float]]:
    model = auto.from_pretrained(chosen.path, dtype=chosen.dtype).to(chosen.device).eval()
    vocabulary = model.config.vocab_size
    engine = LocalEngine(chosen.device, chosen.dtype)
    engine.load("policy", Path(chosen.path))
    steps(engine, vocabulary, 4, 8)
    generate(model, 4, 8)
    if vllm is not None:
        steps(vllm, vocabulary, 4, 8)
    rows = []
    for count in concurrent:
        row = {
            "concurrent": count,
            "episodes_tok_s": episodes(engine, vocabulary, count, prompt),
            "generate_episodes": generate_episodes(model, count, prompt),
            "steps_tok_s": steps(engine, vocabulary, count, length),
            "generate_steps": generate(model, count, length),
        }
        row["episodes_vs_generate"] = row["episodes_tok_s"] / row["generate_episodes"]
        row["steps_vs_generate"] = row["steps_tok_s"] / row["generate_steps"]
        if vllm is not None:
            row["vllm_episodes"] = episodes(vllm, vocabulary, count, prompt)
            row["vllm_steps"] = steps(vllm, vocabulary, count, length)
            row["episodes_vs_vllm"] = row["episodes_tok_s"] / row["vllm_episodes"]
        rows.append({name: round(value, 2) for name, value in row.items()})
    engine.close()
    return rows


@contextmanager
def vllm_of(python: Path | None, model: Model, home: Path) -> "Iterator[VllmEngine | None]":
    """A vLLM that holds the model, as policy servers start it; None where no Python is named."""
    if python is None:
        yield None
        return
    from vllm_pool import engine_at, load

    engine = engine_at(home, Vllm(python=str(python)), rank=0, model=model)
    try:
        load(engine, "policy", Path(model.path))
        yield engine
    finally:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a transformers directory; random where absent")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--concurrent", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--length", type=int, default=64, help="tokens of each equal request")
    parser.add_argument(
        "--prompt", type=int, default=PROMPT, help="tokens with which each episode begins"
    )
    parser.add_argument("--vllm", type=Path, help="a Python that has vLLM, to measure it as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or Path(folder) / "model"
        if not options.model:
            make_model("quickstart", path)
        model = Model(path=str(path), device=options.device, dtype=options.dtype)
        with vllm_of(options.vllm, model, Path(folder)) as vllm:
            rows = measure(model, options.concurrent, options.length, options.prompt, vllm)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
