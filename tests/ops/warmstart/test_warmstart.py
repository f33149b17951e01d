"""Whole warm starts, of all weights and of adapters: made, continued, made again, refused."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from warm_starts import OPTIONS, TASKS, options

from agentrl.checkpoints import manifest
from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Lora
from agentrl.core.errors import AgentRLError, CheckpointError, ConfigError, ItemError
from agentrl.ops.interruption import Interrupted
from agentrl.ops.warmstart.cloning_trainer import PhaseRecord, Progress
from agentrl.ops.warmstart.command import make
from agentrl.ops.warmstart.options import Phase, WarmstartOptions
from agentrl.ops.warmstart.start_adapter import FILE, StartAdapter, StartRecord
from agentrl.ops.warmstart.state import WarmstartState
from agentrl.ops.warmstart.student_policy import SHAPE
from agentrl.ops.warmstart.tokenizer import OPENINGS
from agentrl.ops.warmstart.warmstart import _fingerprint, warmstart
from agentrl.trainer.snapshots.snapshots import State
from agentrl.workers.conversation.template import ChatTemplate


@pytest.mark.slow
def test_a_warm_start_is_whole_and_loads_in_plain_transformers(
    made: tuple[Path, list[Progress]],
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out, _ = made
    assert "model.safetensors" in manifest.verify(out).files
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out)
    template = ChatTemplate.load(out)
    assert model.config.vocab_size == template.vocab_size == len(tokenizer)
    assert template.stop_ids == {model.generation_config.eos_token_id}
    assert "agentrl warmstart" in (out / "README.md").read_text()


@pytest.mark.slow
def test_a_phase_ends_when_success_is_low_enough(made: tuple[Path, list[Progress]]) -> None:
    _, seen = made
    last = seen[-1]
    assert (last.phase, last.step, last.steps) == (1, 3, 9)
    assert set(last.success) == set(TASKS)


def test_a_failed_episode_of_an_expert_without_faults_is_not_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {"alfworld": Task(options=OPTIONS, max_turns=4)}
    one = (Phase(noise={}, steps=1, checked=0),)
    make(replace(options(tmp_path / "out", phases=one, measured=0), tasks=few))
    printed = capsys.readouterr()
    found = re.search(r"alfworld: (\d+) of 12 expert episodes are left out", printed.err)
    assert found, printed.err
    assert 0 < int(found[1]) < 12
    assert f"{12 - int(found[1])} demonstrations" in printed.out


def test_a_warm_start_obeys_chunk_logits(tmp_path: Path) -> None:
    few = {"alfworld": Task(options=OPTIONS, max_turns=4)}
    one = (Phase(noise={}, steps=1, checked=0),)
    rows: list[int] = []

    def count(module: torch.nn.Module, _: object, logits: torch.Tensor) -> None:
        is_head = getattr(module, "out_features", 0) > SHAPE["intermediate_size"]
        if is_head and torch.is_grad_enabled():
            rows.append(len(logits))

    chosen = options(tmp_path / "out", phases=one, measured=0, chunk_logits=1)
    with torch.nn.modules.module.register_module_forward_hook(count):
        warmstart(replace(chosen, tasks=few))
    assert len(rows) > 1
    assert set(rows) == {1}


@pytest.mark.slow
def test_the_same_seed_makes_the_same_weights(
    made: tuple[Path, list[Progress]], tmp_path: Path
) -> None:
    warmstart(options(tmp_path / "again"))
    first, again = (load_file(each / "model.safetensors") for each in (made[0], tmp_path / "again"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.fixture(scope="module")
def adapted(
    made: tuple[Path, list[Progress]], tmp_path_factory: pytest.TempPathFactory
) -> WarmstartOptions:
    """Finished, with an adapter of rank 4 on the model of `made`."""
    out = tmp_path_factory.mktemp("adapted") / "start"
    one = (Phase(noise={}, steps=3, checked=1),)
    chosen = options(
        out, model=made[0], lora=Lora(rank=4), phases=one, dtype="bfloat16", episodes=4
    )
    warmstart(chosen)
    return chosen


@pytest.mark.slow
def test_a_warm_start_of_an_adapter_is_made_again_from_the_adapter_alone(
    made: tuple[Path, list[Progress]], adapted: WarmstartOptions, tmp_path: Path
) -> None:
    """In another folder, with the starting model in another place."""
    base = tmp_path / "base"
    shutil.copytree(made[0], base)
    shutil.copytree(f"{adapted.out}-adapter", tmp_path / "start-adapter")
    report = warmstart(replace(adapted, out=tmp_path / "start", model=base))
    first, again = (
        (out / "model.safetensors").read_bytes() for out in (adapted.out, tmp_path / "start")
    )
    assert first == again
    assert first != (made[0] / "model.safetensors").read_bytes()
    assert (report.steps, report.parameters) == (3, sum(map(torch.numel, weights(made[0]))))
    assert set(report.skills) == set(TASKS)
    assert manifest.verify(adapted.out).files.keys() == manifest.verify(report.out).files.keys()
    adapter = tmp_path / "start-adapter" / "adapter_model.safetensors"
    assert adapter.stat().st_size < len(first) / 5


def weights(model: Path) -> list[torch.Tensor]:
    return list(load_file(model / "model.safetensors").values())


@pytest.mark.slow
def test_an_adapter_of_another_warm_start_or_for_another_model_is_refused(
    made: tuple[Path, list[Progress]], adapted: WarmstartOptions, tmp_path: Path
) -> None:
    shutil.copytree(f"{adapted.out}-adapter", tmp_path / "start-adapter")
    here = replace(adapted, out=tmp_path / "start")
    for other in (replace(here, seed=7), replace(here, model=adapted.out)):
        with pytest.raises(ConfigError, match="a warm start with other options"):
            warmstart(other)
    start = StartAdapter(here.out, made[0])
    record = msgspec.json.decode((start.folder / FILE).read_bytes(), type=StartRecord)
    changed = dict.fromkeys(record.weights, "0" * 64)
    with pytest.raises(CheckpointError, match="no longer give the same weights"):
        start.restore(msgspec.structs.replace(record, weights=changed))
    assert [path.name for path in tmp_path.iterdir()] == ["start-adapter"]


@pytest.mark.slow
def test_an_interrupted_warm_start_of_an_adapter_goes_on_to_the_same_weights(
    adapted: WarmstartOptions, tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.step == 1:
            raise KeyboardInterrupt

    here = replace(adapted, out=tmp_path / "start")
    with pytest.raises(KeyboardInterrupt):
        warmstart(here, interrupt)
    saved = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert saved < (adapted.out / "model.safetensors").stat().st_size
    warmstart(here)
    again, first = (out / "model.safetensors" for out in (here.out, adapted.out))
    assert again.read_bytes() == first.read_bytes()


def test_an_adapter_needs_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a model"):
        warmstart(options(tmp_path / "out", lora=Lora(rank=4)))


def test_an_existing_directory_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        warmstart(options(tmp_path))


def test_a_device_that_is_absent_is_refused_before_the_experts_play(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text("{")
    absent = options(tmp_path / "out", device="cuda:99", imported=tmp_path / "broken.jsonl")
    with pytest.raises(ConfigError, match="this machine has no cuda:99"):
        warmstart(absent)


def test_held_out_items_are_needed_only_where_success_is_measured(tmp_path: Path) -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    tasks = {"dbbench": Task(options=OPTIONS, eval_split="tests")}
    one = (Phase(noise={}, steps=1, checked=0),)
    unmeasured = replace(options(tmp_path / "out", episodes=2, phases=one, measured=0), tasks=tasks)
    with pytest.raises(ItemError, match="dbbench: unknown split tests"):
        warmstart(replace(unmeasured, measured=1), interrupt)
    with pytest.raises(KeyboardInterrupt):
        warmstart(unmeasured, interrupt)


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(AgentRLError):
        warmstart(options(tmp_path / "out", model=tmp_path / "absent"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("at", "step"), [(1, 1), (4, 3)])
def test_an_interrupted_warm_start_goes_on_to_the_same_weights(
    made: tuple[Path, list[Progress]],
    tmp_path: Path,
    at: int,
    step: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In its first phase, and in its second, after two steps and a measurement of the first."""
    steps: list[int] = []

    def interrupt(progress: Progress) -> None:
        steps.append(progress.step)
        if len(steps) == at:
            raise KeyboardInterrupt

    small = options(tmp_path / "again")
    with pytest.raises(Interrupted, match="the progress is kept") as caught:
        make(small, interrupt)
    assert caught.value.hint == "run the same command to continue"
    assert [path.name for path in tmp_path.iterdir()] == [".again.warmstart"]
    capsys.readouterr()
    make(small)
    first_line, *_ = capsys.readouterr().err.splitlines()
    folder = tmp_path / ".again.warmstart"
    assert first_line == f"continues the interrupted warm start in {folder} after step {step}"
    assert [path.name for path in tmp_path.iterdir()] == ["again"]
    first, again = (load_file(each / "model.safetensors") for each in (made[0], tmp_path / "again"))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_warm_start_with_other_options_is_not_continued(tmp_path: Path) -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    small = options(tmp_path / "out", episodes=2, batch_tokens=64)
    with pytest.raises(KeyboardInterrupt):
        warmstart(small, interrupt)
    # which decide how many steps of the second phase there are
    limits = Sampling(max_step_tokens=3)
    for other in (replace(small, seed=7), replace(small, sampling=limits)):
        with pytest.raises(ConfigError, match="with other options"):
            warmstart(other)


def test_a_warm_start_is_continued_with_other_chunk_logits(tmp_path: Path) -> None:
    """As after memory ran out; they change the weights by rounding only."""

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    one = (Phase(noise={}, steps=2, checked=0),)
    small = options(tmp_path / "out", episodes=2, batch_tokens=64, phases=one, measured=0)
    with pytest.raises(KeyboardInterrupt):
        warmstart(small, interrupt)
    began: list[int] = []
    fewer = replace(small, chunk_logits=1)
    warmstart(fewer, watch_continuation=lambda step, _: began.append(step))
    assert began == [1]


def test_a_warm_start_with_demonstrations_chosen_otherwise_is_not_continued(
    tmp_path: Path,
) -> None:
    """Once the options alone were its fingerprint, as they still are of a finished adapter."""
    small = options(tmp_path / "out")
    former = WarmstartState(small.out, _fingerprint(small))
    former.save(PhaseRecord(0, steps=1), State({}, {}))
    with pytest.raises(ConfigError, match="or of another version of AgentRL"):
        warmstart(small)


def test_a_warm_start_whose_model_encodes_otherwise_is_not_continued(tmp_path: Path) -> None:
    """A changed card does not matter."""

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    model = tmp_path / "model"
    shutil.copytree(Path(__file__).parents[3] / "models" / "tiny", model)
    one = (Phase(noise={}, steps=2, checked=0),)
    small = options(
        tmp_path / "out", model=model, episodes=2, batch_tokens=64, phases=one, measured=0
    )
    with pytest.raises(KeyboardInterrupt):
        warmstart(small, interrupt)
    template = model / "chat_template.jinja"
    before = template.read_text("utf-8")
    template.write_text(before.replace("\n", "", 1), "utf-8")
    with pytest.raises(ConfigError, match="with other options"):
        warmstart(small)
    template.write_text(before, "utf-8")
    (model / "README.md").write_text("Another card.", "utf-8")
    warmstart(small)


@pytest.mark.slow
def test_weights_are_written_in_the_dtype_of_the_policy(tmp_path: Path) -> None:
    out = tmp_path / "low"
    one = (Phase(noise={}, steps=1, checked=1),)
    warmstart(options(out, dtype="bfloat16", phases=one, episodes=2))
    weights = load_file(out / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_policy_that_ships_is_whole_and_small() -> None:
    shipped = Path(__file__).parents[3] / "models" / "tiny"
    assert set(manifest.verify(shipped).files) >= {"model.safetensors", "README.md"}
    assert sum(path.stat().st_size for path in shipped.iterdir()) < 8 * 1024**2
    template = ChatTemplate.load(shipped)
    template.check_append_only()
    for opening in OPENINGS:
        assert len(template.encode(opening)) == 1
