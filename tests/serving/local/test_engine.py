"""The local engine against plain transformers."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from running import eventually
from torch_device import DEVICE
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentrl.checkpoints.manifest import Probe
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model, PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import CheckpointError, ConfigError, PolicyError
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.checkpoint_loader import verify_weights
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.local.engine import LocalEngine, make
from agentrl.serving.local.recorded_passes import Recorders

Save = Callable[[str], Path]
VOCABULARY = 96
auto: Any = AutoModelForCausalLM


@cache
def plain_model(path: Path) -> Any:
    return auto.from_pretrained(path).eval()


def plain_logprobs(path: Path, prompt: list[int], sampled: list[int], t: float) -> torch.Tensor:
    """Of `sampled` after `prompt`, by one plain forward pass."""
    model = plain_model(path)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + sampled])).logits[0]
    logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1].float() / (t or 1.0), dim=-1)
    return logprobs[range(len(sampled)), sampled]


def assert_exact(path: Path, request: Request, completion: Completion) -> None:
    expected = plain_logprobs(path, request.prompt, completion.token_ids, request.temperature)
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


def some_prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(length)]


def test_logprobs_of_ragged_requests_to_two_policies_equal_a_plain_forward_pass(
    engine: LocalEngine, save_model: Save
) -> None:
    rng = random.Random(1)
    requests = [
        Request(
            policy=rng.choice("ab"),
            prompt=some_prompt(rng, rng.choice([1, 3, 40, 200])),
            max_tokens=rng.randrange(1, 30),
            temperature=rng.choice([0.0, 0.5, 1.0, 1.7]),
            session=str(number),
        )
        for number in range(40)
    ]
    futures = [engine.submit(request) for request in requests]
    for request, future in zip(requests, futures, strict=True):
        completion = future.result(timeout=60)
        assert len(completion.token_ids) == request.max_tokens
        assert completion.finish_reason == "length"
        assert_exact(save_model(request.policy), request, completion)


def test_a_later_turn_reuses_the_prefix_and_stays_exact(
    engine: LocalEngine, save_model: Save
) -> None:
    rng = random.Random(2)
    prompts = {str(number): some_prompt(rng, 20 + number) for number in range(12)}
    for turn in range(4):
        futures: dict[str, tuple[Request, Future[Completion]]] = {}
        for session, prompt in prompts.items():
            request = Request("a", prompt, max_tokens=5 + turn, session=session)
            futures[session] = request, engine.submit(request)
        for session, (request, future) in futures.items():
            completion = future.result(timeout=60)
            assert_exact(save_model("a"), request, completion)
            if turn:
                assert completion.cached_tokens == len(request.prompt) - 8
            prompts[session] = request.prompt + completion.token_ids + some_prompt(rng, 7)


def test_a_session_that_changed_its_past_reuses_only_what_is_common(
    engine: LocalEngine, save_model: Save
) -> None:
    first = Request("a", list(range(30)), max_tokens=5, session="s")
    engine.submit(first).result(timeout=60)
    changed = Request("a", [*range(20), 5, 5, 5], max_tokens=5, session="s")
    completion = engine.submit(changed).result(timeout=60)
    assert completion.cached_tokens == 20
    assert_exact(save_model("a"), changed, completion)
    shorter = Request("a", list(range(10)), max_tokens=5, session="s")
    completion = engine.submit(shorter).result(timeout=60)
    assert completion.cached_tokens == 9
    assert_exact(save_model("a"), shorter, completion)


def test_a_prefix_of_one_policy_never_serves_another(engine: LocalEngine, save_model: Save) -> None:
    engine.submit(Request("a", list(range(30)), max_tokens=2, session="s")).result(timeout=60)
    request = Request("b", list(range(30)), max_tokens=5, session="s")
    completion = engine.submit(request).result(timeout=60)
    assert completion.cached_tokens == 0
    assert_exact(save_model("b"), request, completion)


def test_prompts_that_begin_alike_are_computed_once_and_stay_exact(
    engine: LocalEngine, save_model: Save
) -> None:
    rng = random.Random(4)
    tools = some_prompt(rng, 100)
    group = [*tools, *some_prompt(rng, 30)]
    other = [*tools, *some_prompt(rng, 700)]
    kept = Request("a", group, max_tokens=3, session="kept")
    assert engine.submit(kept).result(timeout=60).cached_tokens == 0
    requests = [
        *(
            Request("a", group, max_tokens=20, session=str(number), seed=number)
            for number in range(6)
        ),
        *(
            Request("a", other, max_tokens=20, session=f"o{number}", seed=number)
            for number in range(3)
        ),
        Request("a", group[:64], max_tokens=5, session="short"),
    ]
    futures = [engine.submit(request) for request in requests]
    completions = [future.result(timeout=60) for future in futures]
    for request, completion in zip(requests, completions, strict=True):
        assert_exact(save_model("a"), request, completion)
    assert [completion.cached_tokens for completion in completions[:6]] == [128] * 6
    assert {completion.cached_tokens for completion in completions[6:9]} <= {96, 768}
    assert completions[9].cached_tokens == 32


def test_a_prompt_longer_than_one_pass_is_exact(engine: LocalEngine, save_model: Save) -> None:
    rng = random.Random(3)
    requests = [Request("a", some_prompt(rng, n), max_tokens=4) for n in (513, 900, 1020, 7)]
    futures = [engine.submit(request) for request in requests]
    for request, future in zip(requests, futures, strict=True):
        assert_exact(save_model("a"), request, future.result(timeout=60))


def test_greedy_equals_generate(engine: LocalEngine, save_model: Save) -> None:
    prompt = list(range(5, 25))
    model = plain_model(save_model("a"))
    expected = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(prompt) :].tolist()
    completion = engine.submit(Request("a", prompt, 40, temperature=0.0)).result(timeout=60)
    assert completion.token_ids == expected


def test_a_stop_token_ends_the_completion_and_is_part_of_it(engine: LocalEngine) -> None:
    full = engine.submit(Request("a", [1, 2, 3], 20, temperature=0.0)).result(timeout=60)
    stop = full.token_ids[4]
    request = Request("a", [1, 2, 3], 20, temperature=0.0, stop_ids=frozenset({stop}))
    stopped = engine.submit(request).result(timeout=60)
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == full.token_ids[: full.token_ids.index(stop) + 1]


def test_a_seed_gives_the_same_tokens_alone_and_in_company(engine: LocalEngine) -> None:
    request = Request("a", [4, 5, 6], 20, seed=9)
    alone = engine.submit(request).result(timeout=60)
    company = [engine.submit(Request("a", [7] * n, 30)) for n in range(1, 6)]
    again = engine.submit(request).result(timeout=60)
    assert again.token_ids == alone.token_ids
    for future in company:
        future.result(timeout=60)


def test_tokens_are_drawn_from_the_distribution_that_is_reported(
    save_model: Save, recorders: Recorders
) -> None:
    with closing(LocalEngine(DEVICE, max_batch=128, recorders=recorders)) as engine:
        engine.load("a", save_model("a"))
        futures = [engine.submit(Request("a", [3, 1, 4], 1, temperature=0.7)) for _ in range(4000)]
        drawn = [future.result(timeout=60) for future in futures]
    probability: dict[int, float] = {}
    for completion in drawn:
        probability[completion.token_ids[0]] = float(torch.tensor(completion.logprobs[0]).exp())
    for token, p in probability.items():
        share = sum(completion.token_ids == [token] for completion in drawn) / len(drawn)
        assert abs(share - p) < 5 * (p * (1 - p) / len(drawn)) ** 0.5 + 1e-3


def test_kept_tokens_stay_within_their_bound(save_model: Save) -> None:
    engine = LocalEngine(DEVICE, cache_tokens=100)
    engine.load("a", save_model("a"))
    prompts = {session: [number] * 40 for number, session in enumerate("xyz")}
    for session, prompt in prompts.items():
        engine.submit(Request("a", prompt, 5, session=session)).result(timeout=60)
    reused = {
        session: engine.submit(Request("a", prompts[session], 1, session=session)).result(
            timeout=60
        )
        for session in "zx"
    }
    assert reused["z"].cached_tokens == 39
    assert reused["x"].cached_tokens == 0
    assert engine._prefixes.tokens <= 100
    engine.close()


def test_unloading_fails_unfinished_requests_and_frees_the_name(
    engine: LocalEngine, save_model: Save
) -> None:
    running = engine.submit(Request("a", [1], 1000))
    engine.unload("a")
    with pytest.raises(PolicyError, match="policy a was unloaded"):
        running.result(timeout=60)
    with pytest.raises(PolicyError, match="policy a is not loaded"):
        engine.submit(Request("a", [1], 1))
    engine.load("a", save_model("b"))
    request = Request("a", [1, 2], 5)
    assert_exact(save_model("b"), request, engine.submit(request).result(timeout=60))


def test_a_cancelled_request_leaves_the_batch(engine: LocalEngine) -> None:
    future = engine.submit(Request("a", [1], 1000, session="s"))
    assert future.cancel()
    eventually(
        lambda: not engine._batches["a"].busy, within_s=60, text=lambda: "it is still sampled"
    )


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request("a", [], 1), "prompt"),
        (Request("a", [VOCABULARY], 1), "prompt"),
        (Request("a", [-1], 1), "prompt"),
        (Request("a", [1] * 1000, 25), "prompt"),
        (Request("a", [1], 0), "max_tokens"),
        (Request("a", [1], 1, temperature=-0.1), "temperature"),
        (Request("a", [1], 1, temperature=float("nan")), "temperature"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_by_field(
    engine: LocalEngine, request_: Request, field: str
) -> None:
    with pytest.raises(PolicyError, match=f"^{field}:"):
        engine.submit(request_)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_engine_computes_with_the_configured_threads(save_model: Save, threads: int) -> None:
    """Which its own thread says, when it ends the request of a policy that is unloaded."""
    before, seen = torch.get_num_threads(), []
    config = Config(tasks={"dbbench": Task()}, model=Model(device=DEVICE))
    server = PolicyServer(name="p", threads=threads)
    try:
        with closing(make(serving_config(config), server, threading.Event())) as engine:
            torch.set_num_threads(3)  # what another thread of the process uses
            engine.load("a", save_model("a"))
            future = engine.submit(Request("a", [1, 2], 900))
            future.add_done_callback(lambda _: seen.append(torch.get_num_threads()))
            engine.unload("a")
            with pytest.raises(PolicyError, match="was unloaded"):
                future.result(60)
    finally:
        torch.set_num_threads(before)
    assert seen == [threads]


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_a_device_that_this_machine_lacks_is_refused(device: str) -> None:
    config = Config(tasks={"dbbench": Task()}, model=Model(device=device))
    with pytest.raises(ConfigError, match=rf"^model\.device: .*{device}"):
        make(serving_config(config), PolicyServer(name="p"), threading.Event())


def test_other_architectures_are_served_exactly(tmp_path: Path) -> None:
    configs = {
        "llama": LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            num_hidden_layers=2,
            intermediate_size=96,
            num_attention_heads=4,
            num_key_value_heads=1,
            max_position_embeddings=64,
        ),
        "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=64),
    }
    engine = LocalEngine(DEVICE)
    for name, config in configs.items():
        auto.from_config(config).save_pretrained(tmp_path / name)
        engine.load(name, tmp_path / name)
        requests = [Request(name, list(range(n)), 64 - n) for n in (1, 20, 60)]
        futures = [engine.submit(request) for request in requests]
        for request, future in zip(requests, futures, strict=True):
            assert_exact(tmp_path / name, request, future.result(timeout=60))
    engine.close()


def test_a_broken_checkpoint_is_refused_and_leaves_no_name(
    save_model: Save, tmp_path: Path
) -> None:
    good = save_model("a")
    weights = (good / "model.safetensors").read_bytes()
    config = (good / "config.json").read_text()
    broken = {
        "empty": {},
        "no weights": {"config.json": config.encode()},
        "cut": {"config.json": config.encode(), "model.safetensors": weights[:-100]},
        "no json": {"config.json": b"{", "model.safetensors": weights},
        "other shape": {
            "config.json": config.replace('"hidden_size": 64', '"hidden_size": 32').encode(),
            "model.safetensors": weights,
        },
        "more layers": {
            "config.json": Qwen3Config.from_pretrained(good, num_hidden_layers=3, layer_types=None)
            .to_json_string()
            .encode(),
            "model.safetensors": weights,
        },
    }
    engine = LocalEngine(DEVICE)
    for name, files in broken.items():
        folder = tmp_path / name
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_bytes(content)
        with pytest.raises(CheckpointError):
            engine.load(name, folder)
    assert engine.names() == []
    engine.close()


@pytest.mark.parametrize("where", ["to", "forward"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB. If reserved"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
    ],
)
def test_a_policy_that_finds_no_memory_is_no_broken_checkpoint(
    save_model: Save, monkeypatch: pytest.MonkeyPatch, where: str, error: RuntimeError
) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise error

    with closing(LocalEngine(DEVICE)) as engine, monkeypatch.context() as patched:
        patched.setattr(Qwen3ForCausalLM, where, run_out)
        with pytest.raises(PolicyError, match=r"does not fit into memory: CUDA .*(GiB\.|Create`)$"):
            engine.load("a", save_model("a"))
        assert engine.names() == []
        patched.undo()
        engine.load("a", save_model("a"))


def test_a_probe_text_that_finds_no_memory_refuses_its_policy_only(
    save_model: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")

    with closing(LocalEngine(DEVICE)) as engine, monkeypatch.context() as patched:
        for name in "ab":
            engine.load(name, save_model(name))
        patched.setattr(Qwen3ForCausalLM, "forward", run_out)
        with pytest.raises(PolicyError, match=r"policy a does not fit into memory: CUDA"):
            verify_weights(engine, "a", save_model("a"), Probe([1, 2], [-1.0]), 0.1)
        assert engine.names() == ["b"]


def test_weights_that_are_not_finite_are_refused(save_model: Save, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_model("a"))
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    model.save_pretrained(tmp_path)
    engine = LocalEngine(DEVICE)
    with pytest.raises(CheckpointError, match="not finite"):
        engine.load("nan", tmp_path)
    engine.close()
