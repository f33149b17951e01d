"""A real pretrained model: trained, published, proven and served by every engine.

In bfloat16, where this CPU does not emulate it.
"""

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from moved_weights import move_weights
from running import eventually
from tokenizers import Tokenizer
from torch_device import DEVICE

from agentrl.checkpoints import directories, manifest
from agentrl.core.config.config import Config
from agentrl.core.config.sections.base import Dtype
from agentrl.core.config.sections.policies import Model, PolicyServer, Vllm
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.db.models.updates import Checkpoint
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.checkpoint_loader import CheckpointLoader, median_gap, tolerance
from agentrl.serving.engine_api import Request
from agentrl.serving.local.engine import LocalEngine
from agentrl.serving.vllm.engine import VllmEngine
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.bfloat16_cost import is_bfloat16_emulated

DTYPE: Dtype = "float32" if is_bfloat16_emulated(DEVICE) else "bfloat16"
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
CHUNK = 256  # tokens of a prompt that vLLM reads at once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module", params=[0, 4], ids=["whole", "adapter"])
def rank(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def rows(rank: int, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    """Version 0, the model itself, and version 1, moved away from it."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("published")

    def publish(version: int, fill: Any) -> Checkpoint:
        path = folder / f"r-v{version:06d}"
        directories.publish(path, fill, checkpoint_id=path.name, version=version, parent=None)
        return Checkpoint(checkpoint_id=path.name, run_id="r", version=version, path=str(path))

    def copy(target: Path) -> None:
        for file in smollm2.iterdir():
            shutil.copy(file, target / file.name)

    first = publish(0, copy)
    chosen = resolve_settings(Trainer(lora=Lora(rank=rank)))
    learner = TorchLearner(Path(first.path), chosen, Hardware(DEVICE, DTYPE))
    move_weights(learner, rank)

    def save(target: Path) -> manifest.SaveReport:
        return replace(learner.copy_weights()(target), probe=learner.probe())

    return [first, publish(1, save)]


def holder_of(engine: Any, folder: Path) -> CheckpointLoader:
    return CheckpointLoader(engine, tolerance(DTYPE), folder)


def gaps(engine: Any, row: Checkpoint) -> tuple[float, float]:
    """The median and the largest difference from what the trainer says."""
    probe = manifest.read(Path(row.path)).probe
    assert probe is not None
    found = engine.score(row.checkpoint_id, probe.token_ids)
    most = max(abs(a - b) for a, b in zip(found, probe.logprobs, strict=True))
    return median_gap(found, probe.logprobs), most


def test_the_local_engine_serves_it(rows: list[Checkpoint], tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(Path(rows[0].path) / "tokenizer.json"))
    prompt = tokenizer.encode(QUESTION, add_special_tokens=False).ids
    stop = frozenset({tokenizer.token_to_id("<|im_end|>")})
    with closing(LocalEngine(DEVICE, DTYPE, max_batch=4)) as engine:
        holder = holder_of(engine, tmp_path)
        assert [holder.load(row) for row in rows] == [True, True]
        assert gaps(engine, rows[1])[0] < tolerance(DTYPE) / 2
        request = Request(rows[0].checkpoint_id, prompt, 16, 0.0, stop)
        answer = engine.submit(request).result(200)
    assert "Paris" in tokenizer.decode(answer.token_ids)


@pytest.fixture
def vllm(rank: int, smollm2: Path, vllm_python: Path, tmp_path: Path) -> Iterator[VllmEngine]:
    arguments = ["--enable-chunked-prefill", "--max-num-batched-tokens", str(CHUNK)]
    section = Vllm(python=str(vllm_python), context=1024, args=arguments)
    server = PolicyServer(name="p", engine="vllm", vllm=section)
    config = Config(
        tasks={"dbbench": Task()},
        run=Run(home=str(tmp_path / "home")),
        model=Model(path=str(smollm2), dtype=DTYPE),
        policy=[server],
        trainer=Trainer(lora=Lora(rank=rank)),
    )
    with closing(VllmEngine(serving_config(config), server, threading.Event())) as engine:
        yield engine


def test_vllm_serves_it_and_survives_a_seeded_prompt_that_is_read_in_chunks(
    vllm: VllmEngine, rows: list[Checkpoint], tmp_path: Path
) -> None:
    holder = holder_of(vllm, tmp_path)
    for row in rows:
        eventually(
            lambda row=row: holder.load(row) or holder.problem(),  # type: ignore[misc]
            within_s=900,
            text=lambda: "vLLM does not start",
        )
        assert holder.problem() == ""
    median, _ = gaps(vllm, rows[1])
    assert median < tolerance(DTYPE) / 2
    generation = vllm._process.generation()
    asked = [
        vllm.submit(
            Request(rows[1].checkpoint_id, [at * 7 + n for at in range(3 * CHUNK)], 8, seed=n)
        )
        for n in range(3)
    ]
    assert [len(each.result(300).token_ids) for each in asked] == [8, 8, 8]
    assert vllm._process.generation() == generation  # it did not die
