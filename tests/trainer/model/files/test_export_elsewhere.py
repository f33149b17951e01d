"""What `export` wrote, read where nothing of ours is: by transformers, by peft and by vLLM.

Each is asked for the log-probabilities of the tokens that the checkpoint's probe holds;
transformers also how far each token of the engine's greedy answer to a prompt with a tool is behind
the most probable one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from moved_weights import move_weights
from running import ROOT

from agentrl.checkpoints import directories
from agentrl.checkpoints.manifest import Probe
from agentrl.core.config.sections.base import Dtype
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.trajectory import Trajectory
from agentrl.envs.contract import Message, strings
from agentrl.ops.warmstart.start_adapter import add_in_float64
from agentrl.serving.checkpoint_loader import median_gap
from agentrl.serving.engine_api import Request
from agentrl.serving.local.adapter_sum import merge_adapter
from agentrl.serving.local.engine import LocalEngine
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.files.export import export
from agentrl.workers.conversation.template import ChatTemplate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

TINY = ROOT / "models" / "tiny"
NEAR: dict[Dtype, float] = {"float32": 1e-4, "bfloat16": 0.1}  # see `_gap`; measured: 0.03
BEHIND: dict[Dtype, float] = {"float32": 1e-4, "bfloat16": 0.25}  # of a logit: two roundings at 16
MESSAGES = [
    Message("system", "Answer with a call."),
    Message("user", "How many people live in Paris?"),
]
TOOL = strings("population", "Count the people of a city.", "city")
GREEDY_TOKENS = 12
READ = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
path, base, asked = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
tokenizer = AutoTokenizer.from_pretrained(path)
prompt = tokenizer.apply_chat_template(
    asked["messages"], tools=asked["tools"], add_generation_prompt=True, return_dict=False
)
model = AutoModelForCausalLM.from_pretrained(base)
if base != path:
    from peft import PeftModel
    model = PeftModel.from_pretrained(model, path)
ids = torch.tensor([asked["tokens"]])
with torch.no_grad():
    every = model(ids).logits[0, :-1].float().log_softmax(-1)
answer = asked["answer"]
with torch.no_grad():
    said = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].float()
behind = said.max(-1).values - said.gather(-1, torch.tensor(answer)[:, None])[:, 0]
assert "agentrl" not in sys.modules
print("said", json.dumps({
    "dtype": str(model.dtype).removeprefix("torch."),
    "logprobs": every.gather(-1, ids[0, 1:, None])[:, 0].tolist(),
    "prompt": prompt,
    "behind": behind.tolist(),
}))
"""
SERVE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
path, base, tokens = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])["tokens"]
adapter = LoRARequest("adapter", 1, path) if base != path else None
model = LLM(
    base, dtype="float32", enforce_eager=True, max_model_len=128, enable_lora=adapter is not None
)
asked = SamplingParams(max_tokens=1, prompt_logprobs=0)
[said] = model.generate({"prompt_token_ids": tokens}, asked, lora_request=adapter)
assert "agentrl" not in sys.modules
found = zip(said.prompt_logprobs[1:], tokens[1:])
print("said", json.dumps([every[token].logprob for every, token in found]))
"""
ALONE = {  # vLLM on a CPU: one thread bound to no core; nothing is compiled or fetched
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}


class Export(NamedTuple):
    """`base`: what the export needs, itself if nothing. Of the checkpoint that was exported:
    `probe`, `greedy` (the local engine's tokens after the prompt) and `dtype`.
    """

    path: Path
    base: Path
    probe: Probe
    greedy: list[int]
    dtype: Dtype


@dataclass(frozen=True)
class Training:
    """How a model is trained before the export: learning rates and added noise, by kind."""

    path: Path
    dtype: Dtype
    updates: int
    members: int
    rates: Mapping[str, float]
    noise: Mapping[str, float]


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def training(request: pytest.FixtureRequest) -> Training:
    """SmolLM2 takes one step, because bfloat16 is slow on many CPUs, and noise for the others."""
    torch.set_num_threads(1)
    if request.param == "tiny":
        return Training(TINY, "float32", 3, 4, {"whole": 1e-2, "adapter": 1e-2}, {})
    path = request.getfixturevalue("smollm2")
    rates = {"whole": 1e-4, "adapter": 3e-3}
    return Training(path, "bfloat16", 1, 2, rates, {"whole": 0.01, "adapter": 0.05})


@pytest.fixture(scope="module")
def exported(
    training: Training,
    make_trajectory: Callable[..., Trajectory],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Export]:
    """All weights; an adapter; the adapter merged into its base."""
    folder = tmp_path_factory.mktemp("exported")
    made = {}
    for kind, rank in (("whole", 0), ("adapter", 4)):
        chosen = resolve_settings(
            Trainer(learning_rate=training.rates[kind], normalise="none", lora=Lora(rank=rank))
        )
        members = tuple(
            make_trajectory([(3, 12)], 14, reward=float(n % 2), seed=n)
            for n in range(training.members)
        )
        batch = assemble_batch([TrainableGroup("g", "db", members)], chosen)
        learner = TorchLearner(training.path, chosen, Hardware(dtype=training.dtype))
        assert {learner.update(batch).skipped for _ in range(training.updates)} == {""}
        if kind in training.noise:
            move_weights(learner, rank, training.noise[kind])
        directories.publish(
            folder / kind, learner.copy_weights(), checkpoint_id=kind, version=3, parent=None
        )
        path = folder / f"{kind}-out"
        export(folder / kind, path)
        greedy = _greedy(folder / kind, training)
        made[kind] = Export(
            path, training.path if rank else path, learner.probe(), greedy, training.dtype
        )
    merged = folder / "merged-out"
    export(folder / "adapter", merged, partial(merge_adapter, merge=add_in_float64))
    return made | {"merged": made["adapter"]._replace(path=merged, base=merged)}


def _greedy(checkpoint: Path, training: Training) -> list[int]:
    template = ChatTemplate.load(training.path)
    with closing(LocalEngine(dtype=training.dtype)) as engine:
        engine.load("policy", checkpoint)
        request = Request(
            "policy",
            template.encode(template.render(MESSAGES, [TOOL], generate=True)),
            GREEDY_TOKENS,
            temperature=0.0,
            stop_ids=template.stop_ids,
        )
        return engine.submit(request).result(600).token_ids


@pytest.mark.parametrize("kind", ["whole", "merged", "adapter"])
def test_plain_transformers_reads_an_export_and_says_what_the_trainer_and_the_engine_say(
    exported: dict[str, Export], kind: str
) -> None:
    """It also renders the prompt, with the tools of `TOOL`, to the same tokens as we do."""
    wanted = exported[kind]
    said = _said(Path(sys.executable), READ, wanted)
    assert said["dtype"] == wanted.dtype
    gap = _gap(said["logprobs"], wanted.probe.logprobs, wanted.dtype)
    assert gap < NEAR[wanted.dtype]
    template = ChatTemplate.load(wanted.base)
    assert said["prompt"] == template.encode(template.render(MESSAGES, [TOOL], generate=True))
    assert len(said["behind"]) == len(wanted.greedy) > 0
    assert max(said["behind"]) <= BEHIND[wanted.dtype]


@pytest.mark.parametrize("training", ["tiny"], indirect=True)
@pytest.mark.parametrize("kind", ["whole", "merged", "adapter"])
def test_vllm_reads_an_export_and_says_what_the_trainer_says(
    exported: dict[str, Export], kind: str, vllm_python: Path
) -> None:
    said = _said(vllm_python, SERVE, exported[kind])
    assert said == pytest.approx(exported[kind].probe.logprobs, abs=NEAR["float32"])


def test_what_was_trained_is_not_what_it_began_with(
    training: Training, exported: dict[str, Export]
) -> None:
    """Else the answers above would be right for any file."""
    hardware = Hardware(dtype=training.dtype)
    first = TorchLearner(training.path, resolve_settings(Trainer()), hardware).probe()
    probes = [first, exported["whole"].probe, exported["adapter"].probe]
    for one, other in combinations((each.logprobs for each in probes), 2):
        assert _gap(one, other, training.dtype) > 1.5 * NEAR[training.dtype]


def _gap(one: Sequence[float], other: Sequence[float], dtype: Dtype) -> float:
    """Return the largest difference; in bfloat16, where improbable tokens differ, the median."""
    if dtype == "bfloat16":
        return median_gap(one, other)
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _said(python: Path, program: str, wanted: Export) -> Any:
    """`-I`: neither our sources nor our variables are looked at."""
    asked = {
        "tokens": list(wanted.probe.token_ids),
        "messages": [{"role": each.role, "content": each.content} for each in MESSAGES],
        "tools": [TOOL.schema()],
        "answer": wanted.greedy,
    }
    command = [str(python), "-I", "-W", "ignore", "-c", program]
    told = subprocess.run(
        [*command, str(wanted.path), str(wanted.base), json.dumps(asked)],
        env=os.environ | ALONE,
        cwd=wanted.path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-3000:]
    [line] = [each for each in told.stdout.splitlines() if each.startswith("said ")]
    return json.loads(line.removeprefix("said "))
