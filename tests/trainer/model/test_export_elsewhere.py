"""What `export` wrote, read where nothing of ours is: by transformers, by peft and by vLLM.

Each is asked for the log-probabilities of the tokens that the checkpoint's probe holds.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import pytest
from running import ROOT

from agentrl.checkpoints import directories
from agentrl.checkpoints.manifest import Probe
from agentrl.core.config.sections import Lora, Trainer
from agentrl.core.trajectory import Trajectory
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.export import export

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TINY = ROOT / "models" / "tiny"
EXACT = 1e-4
READ = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
path, base, tokens = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
AutoTokenizer.from_pretrained(path).apply_chat_template([{"role": "user", "content": "?"}])
model = AutoModelForCausalLM.from_pretrained(base)
if base != path:
    from peft import PeftModel
    model = PeftModel.from_pretrained(model, path)
ids = torch.tensor([tokens])
every = model(ids).logits[0, :-1].log_softmax(-1)
assert "agentrl" not in sys.modules
print("said", json.dumps(every.gather(-1, ids[0, 1:, None])[:, 0].tolist()))
"""
SERVE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
path, base, tokens = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
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


@pytest.fixture(scope="module")
def exported(
    make_trajectory: Callable[..., Trajectory], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, tuple[Path, Path]], dict[str, Probe]]:
    """By kind: the directory and the base it needs, itself if none; and what a probe says."""
    folder = tmp_path_factory.mktemp("exported")
    made, probes = {}, {}
    for kind, rank in (("whole", 0), ("adapter", 4)):
        chosen = resolve_settings(
            Trainer(learning_rate=1e-2, normalise="none", lora=Lora(rank=rank))
        )
        members = tuple(
            make_trajectory([(3, 12)], 14, reward=float(n % 2), seed=n) for n in range(4)
        )
        batch = assemble_batch([TrainableGroup("g", "db", members)], chosen)
        learner = TorchLearner(TINY, chosen, Hardware())
        assert [learner.update(batch).skipped for _ in range(3)] == ["", "", ""]
        probes[kind] = learner.probe()
        directories.publish(
            folder / kind, learner.copy_weights(), checkpoint_id=kind, version=3, parent=None
        )
        export(folder / kind, folder / f"{kind}-out")
        made[kind] = (folder / f"{kind}-out", TINY if rank else folder / f"{kind}-out")
    export(folder / "adapter", folder / "merged-out", merge_lora=True)
    made["merged"] = (folder / "merged-out", folder / "merged-out")
    return made, {**probes, "merged": probes["adapter"]}


@pytest.mark.parametrize("kind", ["whole", "merged", "adapter"])
def test_plain_transformers_reads_an_export_and_says_what_the_trainer_says(
    exported: tuple[dict[str, tuple[Path, Path]], dict[str, Probe]], kind: str
) -> None:
    said = _said(Path(sys.executable), READ, *exported[0][kind], exported[1][kind].token_ids)
    assert said == pytest.approx(exported[1][kind].logprobs, abs=EXACT)


@pytest.mark.parametrize("kind", ["whole", "merged", "adapter"])
def test_vllm_reads_an_export_and_says_what_the_trainer_says(
    exported: tuple[dict[str, tuple[Path, Path]], dict[str, Probe]], kind: str, vllm_python: Path
) -> None:
    said = _said(vllm_python, SERVE, *exported[0][kind], exported[1][kind].token_ids)
    assert said == pytest.approx(exported[1][kind].logprobs, abs=EXACT)


def test_what_was_trained_is_not_what_it_began_with(
    exported: tuple[dict[str, tuple[Path, Path]], dict[str, Probe]],
) -> None:
    """Else the answers above would be right for any file."""
    first = TorchLearner(TINY, resolve_settings(Trainer()), Hardware()).probe()
    said = [each.logprobs for each in (first, exported[1]["whole"], exported[1]["adapter"])]
    for one, other in combinations(said, 2):
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 100 * EXACT


def _said(python: Path, program: str, path: Path, base: Path, tokens: Sequence[int]) -> list[float]:
    """`-I`: neither our sources nor our variables are looked at."""
    command = [str(python), "-I", "-W", "ignore", "-c", program, str(path), str(base)]
    told = subprocess.run(
        [*command, json.dumps(list(tokens))],
        env=os.environ | ALONE,
        cwd=path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-3000:]
    [line] = [each for each in told.stdout.splitlines() if each.startswith("said ")]
    found: list[float] = json.loads(line.removeprefix("said "))
    return found
