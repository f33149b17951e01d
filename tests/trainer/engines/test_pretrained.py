"""SmolLM2 in the local engine, in the trainer and in plain transformers: one greedy answer.

In bfloat16, where this CPU does not emulate it.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_updates import MakeTrajectory
from tokenizers import Tokenizer
from torch_device import DEVICE

from agentrl.core.config.sections.base import Dtype
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.trajectory import PolicyRef
from agentrl.serving.checkpoint_loader import tolerance, verify_weights
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.local.engine import LocalEngine
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.bfloat16_cost import is_bfloat16_emulated

DTYPE: Dtype = "float32" if is_bfloat16_emulated(DEVICE) else "bfloat16"
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
SAMPLED = 8  # tokens
NEAR = {"float32": 1e-4, "bfloat16": 0.15}  # of log-probabilities; measured: 2e-6, 0.07
SETTINGS = resolve_settings(Trainer(normalise="none", lora=Lora(rank=4)))


def test_a_real_models_greedy_answer_has_the_same_log_probabilities_everywhere(
    smollm2: Path, make_trajectory: MakeTrajectory, policies: dict[str, PolicyRef]
) -> None:
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    prompt = tokenizer.encode(QUESTION, add_special_tokens=False).ids
    learner = TorchLearner(smollm2, SETTINGS, Hardware(DEVICE, DTYPE))  # its adapter is zero
    with closing(LocalEngine(DEVICE, DTYPE)) as engine:
        engine.load("policy", smollm2)
        verify_weights(engine, "policy", smollm2, learner.probe(), tolerance(DTYPE))
        answer = engine.submit(Request("policy", prompt, SAMPLED, 0.0)).result(60)
    assert "Paris" in tokenizer.decode(answer.token_ids)

    plain = _in_transformers(smollm2, prompt, answer)
    assert answer.logprobs == pytest.approx(plain, abs=NEAR[DTYPE])

    tokens = [*prompt, *answer.token_ids]
    trajectory = make_trajectory(
        [(len(prompt), len(tokens))],
        len(tokens),
        policies=(policies["current"],),
        tokens=tokens,
        logprobs=[0.0] * len(prompt) + answer.logprobs,
    )
    batch = assemble_batch([TrainableGroup("g", "db", (trajectory,))], SETTINGS)
    metrics = learner.update(batch).values
    assert metrics["loss_tokens"] == SAMPLED
    assert metrics["max_ratio"] == pytest.approx(1.0, abs=NEAR[DTYPE])  # importance weights
    assert metrics["mismatch_k3"] < NEAR[DTYPE] / 10


def _in_transformers(path: Path, prompt: list[int], answer: Completion) -> list[float]:
    """Return the log-probabilities of an answer's tokens."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, DTYPE))
    tokens = torch.tensor([[*prompt, *answer.token_ids]])
    with torch.no_grad():
        logits = model(tokens).logits[0, len(prompt) - 1 : -1].float()
    targets = torch.tensor(answer.token_ids)[:, None]
    found: list[float] = logits.log_softmax(-1).gather(1, targets)[:, 0].tolist()
    return found
