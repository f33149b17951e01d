"""The first ten minutes: the command a stranger types."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from run_history import begun, trained
from running import ROOT
from sqlalchemy import update

from agentrl.core import config_loading
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import CheckpointError, ConfigError, ItemError
from agentrl.core.types import GroupState
from agentrl.db.models.episodes import Group
from agentrl.db.queries import progress
from agentrl.experiments.pretrained.study import SmollmRequest, study_config
from agentrl.ops.doctor import memory
from agentrl.ops.doctor.machine import Machine
from agentrl.ops.quickstart.clone_starting_policy import make_start
from agentrl.ops.quickstart.live_panel import LivePanel
from agentrl.ops.quickstart.quickstart import quickstart
from agentrl.ops.quickstart.recipes import SMOLLM, TINY, Recipe, Size, recipe
from agentrl.ops.quickstart.report import eval_command, resume_command
from agentrl.ops.quickstart.run_config import Choices, prepare
from agentrl.trainer.model import bfloat16_cost


def test_who_interrupts_is_told_what_goes_on_and_what_gives_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command as this shell finds it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv/bin/agentrl"), "quickstart"])
    monkeypatch.setenv("PATH", "")
    path, agentrl = Path("runs/one/config.toml"), ".venv/bin/agentrl"
    table = (
        f"{agentrl} eval {path} --checkpoints 0,latest and "
        f"{agentrl} eval compare {path} 0 latest print the table"
    )
    assert eval_command(path) == table
    assert resume_command(path) == f"{agentrl} up {path} resumes the run; then {table}"


def test_a_line_of_the_training_counts_groups_that_were_dropped_and_why(tmp_path: Path) -> None:
    store, run_id = begun(f"sqlite:///{tmp_path / 'store.db'}")
    output = io.StringIO()
    view = LivePanel(Console(file=output, width=1000), config_loading.loads("[tasks.dbbench]"))
    with closing(store):
        trained(store, run_id, 3)
        for state, group_id in (
            (GroupState.STALE, f"{run_id}-dbbench-1"),
            (GroupState.STALE, f"{run_id}-alfworld-3"),
            (GroupState.FILTERED, f"{run_id}-dbbench-2"),
        ):
            closed = update(Group).where(Group.group_id == group_id).values(state=state)
            store.transact(lambda session, closed=closed: session.execute(closed))
        view.training(store.ask(lambda s: progress.totals(s, run_id)), store, run_id)
    line = output.getvalue()
    untrained = "1 whose rewards varied too little · 2 sampled too many updates ago"
    assert f"| groups not trained {untrained} |" in line


def test_rates_of_a_resumed_training_are_those_since_it_went_on(tmp_path: Path) -> None:
    """Two of 10 updates in 100 s, with 50 episodes and 1000 tokens: 5 updates remain, 250 s."""
    store, run_id = begun(f"sqlite:///{tmp_path / 'store.db'}")
    output, times = io.StringIO(), [100.0]
    config = config_loading.loads("run.stop_updates = 10\n[tasks.dbbench]")
    view = LivePanel(Console(file=output, width=1000), config, lambda: times[0])
    before = replace(
        store.ask(lambda s: progress.totals(s, run_id)),
        updates=3,
        episodes=9000,
        sampled_tokens=90_000,
    )
    with closing(store):
        view.training(before, store, run_id)
        times[0] = 200.0
        after = replace(before, updates=5, episodes=9050, sampled_tokens=91_000)
        view.training(after, store, run_id)
    first, second = output.getvalue().splitlines()
    assert "| episodes/s – | sampled tokens/s – |" in first
    assert first.endswith("ETA –")
    assert "| episodes/s 0.5 | sampled tokens/s 10 |" in second
    assert second.endswith("ETA 250 s")


@pytest.mark.parametrize("recipe_name", ["tiny", "smollm"])
def test_a_machine_with_too_little_memory_is_told_so_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe_name: str
) -> None:
    """Also where the starting policy, by whose shape the memory is planned, is still to be made."""
    found = replace(recipe(recipe_name), hint="")
    if found.full.clones:  # whose model may not be imported here
        monkeypatch.setattr(Recipe, "model_path", lambda *_: ROOT / "models/tiny")
    monkeypatch.setattr(memory, "this_machine", lambda: Machine(100 * 2**20, {}))
    with pytest.raises(ConfigError, match="memory: this machine needs"):
        quickstart(found, Choices(), tmp_path)
    assert not list(tmp_path.glob("**/start*"))
    assert not list(tmp_path.glob("**/store.db"))


def test_on_a_gpu_the_experts_of_both_tasks_are_careless() -> None:
    tasks = config_loading.load(recipe("smollm-gpu").file, {}).tasks
    careless = {name: task.options.get("careless") for name, task in tasks.items()}
    assert careless == {"dbbench": 0.6, "alfworld": 0.6}


def test_a_recipe_that_goes_on_finds_its_run_again_by_what_was_chosen(tmp_path: Path) -> None:
    """Others begin anew each time."""
    chosen = Choices(seed=7, fast=True, cross_policy=False)
    first, second = (prepare(SMOLLM, chosen, tmp_path)[0] for _ in range(2))
    assert first == second
    assert first.run.name == "smollm-fast-seed-7-no-cross-policy"
    assert first.run.stop_updates == SMOLLM.fast.updates
    assert first.sampling.strategy == "current"
    assert Path(first.model.path) == first.home() / "start"
    assert prepare(SMOLLM, Choices(), tmp_path)[0].home() == tmp_path / "smollm"
    config, path = prepare(TINY, Choices(), tmp_path)
    assert config.run.name.startswith("quickstart-2")
    assert (tmp_path / "latest" / "config.toml").samefile(path)


def test_a_folder_named_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest" / "mine").mkdir(parents=True)
    prepare(SMOLLM, Choices(), tmp_path)
    assert [path.name for path in (tmp_path / "latest").iterdir()] == ["mine"]


@pytest.mark.parametrize(("speed", "fast"), [(0.5, "float32"), (2.0, "bfloat16")])
def test_a_cpu_that_is_slower_in_bfloat16_computes_in_float32_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: float, fast: str
) -> None:
    monkeypatch.setattr(bfloat16_cost, "is_bfloat16_emulated", lambda _: False)
    monkeypatch.setattr(bfloat16_cost, "bfloat16_speed", lambda: speed)
    assert prepare(SMOLLM, Choices(), tmp_path)[0].model.dtype == fast
    assert study_config(SmollmRequest(tmp_path, SMOLLM, SMOLLM.full)).model.dtype == fast
    for variable, value in [("DEVICE", "cuda"), ("DTYPE", "bfloat16")]:
        with monkeypatch.context() as environment:
            environment.setenv(f"AGENTRL__MODEL__{variable}", value)
            assert prepare(SMOLLM, Choices(), tmp_path)[0].model.dtype == "bfloat16"


def test_a_machine_without_the_benchmarks_data_gets_generated_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def task() -> Task:
        return prepare(SMOLLM, Choices(), tmp_path)[0].tasks["alfworld"]

    monkeypatch.setenv("AGENTRL_DATA", str(tmp_path))
    assert (task().options["origin"], task().eval_split) == ("generated", "test")
    (tmp_path / "alfworld").mkdir()
    (tmp_path / "alfworld/games.tar.xz").touch()
    assert task().options["origin"] == "generated"
    for path in (path for each in SMOLLM.data for path in each.paths):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert (task().options["origin"], task().eval_split) == ("agentbench", "valid_seen")
    fast = prepare(SMOLLM, Choices(fast=True), tmp_path)[0].tasks
    assert fast["alfworld"].options["origin"] == "generated"
    assert fast["dbbench"].options["origin"] == "wikitables"


def test_a_path_with_quotes_and_backslashes_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / 'a "b" \\n'
    config, path = prepare(SMOLLM, Choices(), folder)
    assert config.home() == folder / "smollm"
    assert config.model.path == str(folder / "smollm" / "start")
    assert config_loading.load(path, {}) == config


def test_a_recipe_without_its_model_names_what_makes_it(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[model]\npath = "models/none"\n[tasks.dbbench]\n')
    here = replace(SMOLLM, file=file, without_data={})
    config, _ = prepare(here, Choices(), tmp_path)
    with pytest.raises(ConfigError, match="models/none does not exist") as error:
        make_start(here, here.full, config)
    assert error.value.hint == "run `make models/smollm2`"


def test_a_split_that_is_not_there_is_refused_before_experts_are_cloned(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[model]\npath = "{ROOT}/models/tiny"\n[tasks.dbbench]\neval_split = "tests"\n'
    )
    here = replace(SMOLLM, file=file, without_data={})
    config, _ = prepare(here, Choices(), tmp_path)
    with pytest.raises(ItemError, match="dbbench: unknown split tests"):
        make_start(here, here.full, config)
    Path(f"{config.model.path}-adapter").mkdir(parents=True)  # no items are needed to restore it
    with pytest.raises(CheckpointError, match="start-adapter"):
        make_start(here, here.full, config)


def test_an_unknown_recipe_is_refused_by_name() -> None:
    assert recipe("smollm") is SMOLLM
    with pytest.raises(ConfigError, match=r"unknown recipe smolm.*smollm"):
        recipe("smolm")


@pytest.mark.slow
@pytest.mark.timeout(800)
@pytest.mark.usefixtures("signals")
def test_a_recipe_clones_experts_trains_and_passes_over_what_is_done(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    small_recipe: Callable[[Path], Recipe],
) -> None:
    """As `make smollm`, with a policy of a million parameters."""
    small = small_recipe(tmp_path)
    first = quickstart(small, Choices(), tmp_path)
    assert first.updates == 2
    assert first.disagreements == []
    assert {task: set(found) for task, found in first.after.items()} == {
        task: {1.0, 0.0} for task in ("dbbench", "alfworld")
    }
    assert all(m.episodes == 6 for found in first.before.values() for m in found.values())
    assert "SmolLM2" not in (told := capsys.readouterr()).out
    assert "warm start: 3 steps" in told.err
    again = quickstart(small, Choices(), tmp_path)
    assert 0.0 < first.training_seconds < first.seconds
    assert again.training_seconds == 0.0
    same = {"seconds": first.seconds, "training_seconds": first.training_seconds}
    assert replace(again, **same) == first
    assert "warm start" not in capsys.readouterr().err


VOWELS = """
def vowels(item, episode):
    said = str(episode.messages)
    return sum(map(said.count, "aeiou")) / len(said)
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("smollm2", "signals")
def test_a_pretrained_model_is_warm_started_and_trained(tmp_path: Path) -> None:
    """On easy generated items, whatever data is here; no two episodes have the same reward."""
    text = SMOLLM.file.read_text().replace("medium", "easy").replace("valid_seen", "test")
    text = text.replace("wikitables", "generated").replace("agentbench", "generated")
    file = tmp_path / "smollm.toml"
    judge = tmp_path / "judge.py"
    judge.write_text(VOWELS)
    judges = [
        f'[tasks.{task}.judge]\nfunction = "{judge}:vowels"' for task in ("dbbench", "alfworld")
    ]
    file.write_text("\n".join([text, *judges]))
    settings = {
        "DISPATCH__GROUPS_PER_UPDATE": "2",
        "DISPATCH__GROUP_SIZE": "3",
        "TASKS__DBBENCH__MAX_TURNS": "3",
        "TASKS__ALFWORLD__MAX_TURNS": "12",
    }
    size = Size(updates=1, items=1, clones=2, episodes=8, settings=settings)
    done = quickstart(replace(SMOLLM, file=file, full=size), Choices(), tmp_path)
    assert done.updates == 1
    assert done.disagreements == []
    assert set(done.after) == {"dbbench", "alfworld"}


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_the_quickstart_trains_and_ends_with_one_json_line() -> None:
    command = [
        sys.executable,
        "-m",
        "agentrl.cli.main",
        "quickstart",
        "--fast",
        "--updates",
        "3",
        "--json",
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    said = json.loads(line)
    assert set(said["before"]) == set(said["after"]) == {"dbbench", "alfworld"}
    assert all(0.0 < p < 1.0 for p in said["before"].values())
    assert said["updates"] == 3
    assert said["episodes"] >= 3 * 8
    assert 0.0 < said["training_seconds"] < said["seconds"]
    assert said["accounting_ok"]
    assert said["policy_mix"]["current"] > said["policy_mix"]["lagged"] > 0
    (path,) = re.findall(r"agentrl eval compare (\S+) 0 latest", ended.stderr)
    compare = [
        sys.executable,
        "-m",
        "agentrl.cli.main",
        "eval",
        "compare",
        path,
        "0",
        "latest",
        "--json",
    ]
    told = subprocess.run(compare, cwd=ROOT, capture_output=True, text=True, check=True)
    kept = {(row["task"], row["temperature"]): row for row in json.loads(told.stdout)}
    for task in said["before"]:
        for temperature, decoding in ((1.0, ""), (0.0, "_greedy")):
            row = kept[task, temperature]
            assert row["first"] == pytest.approx(said[f"before{decoding}"][task], abs=1e-4)
            assert row["second"] == pytest.approx(said[f"after{decoding}"][task], abs=1e-4)
