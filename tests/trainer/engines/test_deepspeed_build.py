import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import rank_processes
from backends import NEEDS_DEEPSPEED
from engine_updates import BASE, LORA, MakeTrajectory, flatten, relative_distance, update_on_torch
from running import eventually, processes_of

from agentrl.core.config.sections.training import DeepSpeed
from agentrl.core.errors import ConfigError
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import TrainableGroup, assemble_batch
from agentrl.trainer.engines import deepspeed_build

pytestmark = NEEDS_DEEPSPEED


def _laid(root: Path, content: bytes, sha256: str) -> Path:
    """As a build leaves it."""
    target = deepspeed_build.build_folder(str(root))
    target.mkdir(parents=True)
    (target / "cpu_adam.so").write_bytes(content)
    (target / deepspeed_build.FACTS).write_text(
        json.dumps({"library": "cpu_adam.so", "sha256": sha256})
    )
    return target


def test_what_was_not_built_is_refused_with_the_command(tmp_path: Path) -> None:
    assert not deepspeed_build.is_built(str(tmp_path))
    with pytest.raises(ConfigError, match="there is no compiled extension") as refused:
        deepspeed_build.load_optimizer(str(tmp_path))
    assert refused.value.hint == "run `agentrl deepspeed build`"


def test_a_library_that_is_not_the_one_that_was_built_is_not_loaded(tmp_path: Path) -> None:
    _laid(tmp_path, b"half", "0" * 64)
    assert not deepspeed_build.is_built(str(tmp_path))
    with pytest.raises(ConfigError, match="there is no compiled extension"):
        deepspeed_build.load_optimizer(str(tmp_path))


def test_what_stands_is_not_built_again(tmp_path: Path) -> None:
    from hashlib import sha256

    target = _laid(tmp_path, b"whole", sha256(b"whole").hexdigest())
    assert deepspeed_build.build_optimizer(str(tmp_path)) == target
    assert (target / "cpu_adam.so").read_bytes() == b"whole"


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("echo first >&2; echo no g++ here >&2; exit 1", "no g[+][+] here"),
        ("exit 3", "exit code 3"),
    ],
)
def test_a_compiler_that_fails_is_named_by_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, words: str
) -> None:
    monkeypatch.setattr(sys, "executable", str(_interpreter(tmp_path, compiler)))
    with pytest.raises(ConfigError, match=f"cpu_adam cannot be compiled: {words}$"):
        deepspeed_build.build_optimizer(str(tmp_path / "extensions"))
    assert not deepspeed_build.is_built(str(tmp_path / "extensions"))


def test_what_the_compiler_made_is_kept_under_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = 'mkdir "$TORCH_EXTENSIONS_DIR/x"; echo made > "$TORCH_EXTENSIONS_DIR/x/cpu_adam.so"'
    monkeypatch.setattr(sys, "executable", str(_interpreter(tmp_path, compiler)))
    target = deepspeed_build.build_optimizer(str(tmp_path / "extensions"))
    assert (target / "cpu_adam.so").read_text() == "made\n"
    assert deepspeed_build.is_built(str(tmp_path / "extensions"))


def _interpreter(folder: Path, script: str) -> Path:
    """A program that stands for the interpreter in which DeepSpeed compiles."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def after_a_kill(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a build that was begun, killed while it compiled, and begun again."""
    root, scratch = tmp_path_factory.mktemp("extensions"), tmp_path_factory.mktemp("scratch")
    program = (
        "from agentrl.trainer.engines import deepspeed_build;"
        f"deepspeed_build.build_optimizer({str(root)!r})"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"TMPDIR": str(scratch)},
        start_new_session=True,
    )

    def compiles() -> bool:
        """Under torch's own lock."""
        assert killed.poll() is None
        return bool(list(scratch.rglob("build.ninja")))

    eventually(compiles, within_s=120, text=lambda: "the build did not begin to compile")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    while compilers := processes_of(scratch):  # would end by themselves, in a minute or many
        for pid in compilers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not deepspeed_build.is_built(str(root))
    assert deepspeed_build.build_optimizer(str(root)).parent == root
    assert deepspeed_build.is_built(str(root))
    return str(root)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_after_a_build_that_was_killed_the_next_one_stands_and_steps_as_adamw(
    after_a_kill: str,
) -> None:
    command = [sys.executable, "-c", STEPS, after_a_kill]
    steps = subprocess.run(command, capture_output=True, text=True, check=False)
    assert steps.returncode == 0, steps.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_offload_gives_the_updates_and_snapshots_of_torch(
    after_a_kill: str, tiny: Path, make_trajectory: MakeTrajectory, tmp_path: Path
) -> None:
    """Of all weights, of an adapter whose base is computed again, and of products in bfloat16."""
    base = msgspec.structs.replace(BASE, micro_batch_tokens=30)
    members = tuple(
        make_trajectory([(3, 7 + n)], 9 + n, reward=float(n % 2), seed=n) for n in range(6)
    )
    batch = assemble_batch([TrainableGroup("g", "db", members)], resolve_settings(base))
    paths = [rank_processes.write_batch(tmp_path / "batch", batch)] * 2
    two = DeepSpeed(zero=2, offload="optimizer", extensions=after_a_kill)
    three = DeepSpeed(zero=3, offload="all", extensions=after_a_kill)
    adapter = msgspec.structs.replace(base, lora=LORA, gradient_checkpointing=True)
    chosen = {
        "two": (base, two, "float32", 1e-4),
        "three": (base, three, "float32", 1e-4),
        "two, adapter": (adapter, two, "float32", 1e-4),
        "three, adapter": (adapter, three, "float32", 1e-4),
        "two, low": (base, two, "bfloat16", 0.05),
        "three, low": (base, three, "bfloat16", 0.05),
    }
    jobs = []
    for name, (plain, section, dtype, _) in chosen.items():
        trainer = msgspec.structs.replace(plain, deepspeed=section)
        half = rank_processes.Job(f"{name}, half", str(tiny), trainer, paths[:1], dtype=dtype)
        jobs.append(msgspec.structs.replace(half, save=str(tmp_path / name)))
        given = str(tmp_path / f"{name}.snapshot")
        jobs.append(
            rank_processes.Job(name, str(tiny), trainer, paths[1:], dtype=dtype, snapshot=given)
        )
    done = rank_processes.run_jobs(jobs, 2, tmp_path)
    for name, (plain, _, dtype, near) in chosen.items():
        before, after, _ = update_on_torch(tiny, plain, [batch, batch], dtype)
        found = done[name].tensors
        start, end = flatten(before, "weights/"), flatten(after, "weights/")
        assert relative_distance(flatten(found, "weights/") - start, end - start) < near, name
        for key in ("exp_avg/", "exp_avg_sq/", "step/"):
            assert relative_distance(flatten(found, key), flatten(after, key)) < near, (name, key)


STEPS = """
import sys, torch
from agentrl.core.config.sections.training import DeepSpeed
from agentrl.trainer.engines import deepspeed_build, zero_shards
library = zero_shards.import_deepspeed("cpu")
deepspeed_build.load_optimizer(sys.argv[1])
torch.manual_seed(0)
start = torch.randn(1000)
ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
rule = {"lr": 1e-3, "weight_decay": 0.1}
adam = library.ops.adam.DeepSpeedCPUAdam([ours], adamw_mode=True, **rule)
plain = torch.optim.AdamW([theirs], **rule)
for _ in range(3):
    gradient = torch.randn(1000)
    ours.grad, theirs.grad = gradient.clone(), gradient.clone()
    adam.step(), plain.step()
off, moved = (ours - theirs).detach().norm(), (theirs - start).detach().norm()
assert off < 1e-4 * moved, (off.item(), moved.item())
"""
