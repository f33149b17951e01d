"""`agentrl eval CONFIG --paper` over small data folders in the benchmarks' own form."""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.envs import registry
from agentrl.envs.tasks.webshop.task_source import split_goals
from agentrl.ops.evaluation import paper
from agentrl.ops.evaluation.command import EvalRequest, evaluate, make_plans

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "paper.toml"
TINY = Path(__file__).parents[3] / "models" / "tiny"
CHANGE = {
    "description": "Add Kim.",
    "label": ["INSERT INTO `Staff` (`name`) VALUES ('Kim')"],
    "type": ["INSERT"],
    "table": {
        "table_name": "Staff",
        "table_info": {"columns": [{"name": "name"}], "rows": [["Bob"]]},
    },
    "answer_md5": None,
}
QUERY = CHANGE | {"description": "Who?", "label": ["Bob"], "type": ["other"]}
WITHOUT_LABEL = QUERY | {"label": None}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's configuration, in this process, and dbbench's file as AgentBench ships it."""
    shipped = tmp_path / "agentbench" / "dbbench"
    shipped.mkdir(parents=True)
    lines = [json.dumps(line) for line in (CHANGE, QUERY, WITHOUT_LABEL)]
    (shipped / "standard.jsonl").write_text("\n".join(lines) + "\n\n")
    text = EXAMPLE.read_text("utf-8").replace("runs/paper", f"{tmp_path}/home")
    path = tmp_path / "paper.toml"
    path.write_text(text.replace('"http://127.0.0.1:7100"', '""'))
    monkeypatch.setenv("AGENTRL_DATA", str(tmp_path))
    return path


def request(**more: Any) -> EvalRequest:
    return EvalRequest(policies=("expert",), paper=True, **more)


def test_our_row_stands_beside_the_papers_and_a_missing_split_stops_only_its_task(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(file, request(tasks=("alfworld", "dbbench", "kg", "os", "webshop")), as_json=False)
    said = capsys.readouterr()
    rows = {line.split()[0]: line for line in said.out.splitlines()}
    assert "3 of 300" in rows["expert"]
    for cell in ("dbbench", "standard", "15", "100.0%", "72.2%", "greedy", "1 failed, in no rate"):
        assert cell in rows["expert"]
    assert "0 of 144" in rows["os"]
    for task, percent in (("alfworld", "91.5%"), ("kg", "72.8%"), ("webshop", "58.5%")):
        assert percent in rows[task]
        assert "not measured: " in rows[task]
        assert f"agentrl data show {task}" in rows[task]
    assert "dev-2" not in said.err
    assert "standard-2: neither SQL nor answers" in said.err


def test_rows_of_json_have_the_papers_figures(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(file, request(tasks=("dbbench", "kg")), as_json=True)
    ours, missing = json.loads(capsys.readouterr().out)
    assert (ours["success"], ours["episodes"], ours["failed"]) == (1.0, 2, 1)
    assert (ours["paper_percent"], ours["paper_items"], ours["temperature"]) == (72.2, 300, 0.0)
    assert (missing["task"], missing["paper_percent"]) == ("kg", 72.8)
    assert "agentbench-standard" in missing["missing"]


def test_a_policy_is_measured_on_a_category_of_bfcl_by_its_name(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text().replace("models/smollm2", str(TINY)) + "[worker]\n")
    asked = EvalRequest(policies=("expert",), tasks=("bfcl",), items=1, paper=True)
    evaluate(file, asked, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["split"] for row in rows] == ["base", "miss_func", "miss_param", "long_context"]
    assert {(row["success"], row["paper_percent"]) for row in rows} == {(1.0, None)}


@pytest.mark.slow  # a command of its own
def test_a_terminal_shows_which_env_server_is_waited_for(file: Path) -> None:
    closed = "http://127.0.0.1:9"
    file.write_text(file.read_text().replace('url = ""', f'url = "{closed}"'))
    command = [sys.executable, "-m", "agentrl.cli.main", "eval", str(file)]
    command += ["--paper", "--tasks", "dbbench", "--policy", "expert"]
    screen, end = os.openpty()
    wide = os.environ | {"COLUMNS": "200", "TERM": "xterm"}
    process = subprocess.Popen(command, env=wide, stdout=subprocess.DEVNULL, stderr=end)
    try:
        said, deadline = b"", time.monotonic() + 120
        while f"expert waits for env server {closed}/dbbench/api ".encode() not in said:
            assert time.monotonic() < deadline, said
            if select.select([screen], [], [], 1.0)[0]:
                said += os.read(screen, 65536)
    finally:
        process.kill()
        process.wait()
        os.close(screen)
        os.close(end)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"dbbench": "max_turns = 10"}, "tasks.dbbench.max_turns is 10, not 15"),
        ({"kg": 'options.style = "compact"'}, "tasks.kg.options.style is compact, not full"),
        ({"kg": 'options.rules = "permissive"'}, "options.rules is permissive, not strict"),
        ({"os": "options.origin = 'generated'"}, "options.origin is generated, not agentbench"),
        ({"webshop": "options.attributes = true"}, "options.attributes is True, not False"),
        ({"lake": "source = 'gymnasium:CliffWalking-v1'"}, "the configuration has none of alf"),
    ],
)
def test_a_configuration_that_differs_from_the_protocol_is_refused(
    changed: dict[str, str], why: str
) -> None:
    ((task, line),) = changed.items()
    with pytest.raises(ConfigError, match=rf"--paper: .*{why}") as raised:
        make_plans(config_loading.loads(f"[tasks.{task}]\n{line}\n"), request())
    assert "docs/examples/paper.toml" in raised.value.hint


def test_the_protocol_names_splits_and_turns_of_every_task() -> None:
    config = config_loading.load(EXAMPLE)
    plans = make_plans(config, request())
    assert {(plan.task, plan.split, plan.temperature) for plan in plans} == {
        (task, split, 0.0)
        for task, protocol in paper.PROTOCOLS.items()
        for split in protocol.splits
    }
    for task, protocol in paper.PROTOCOLS.items():
        source = registry.source(task, config.tasks[task].options)
        assert (source.max_turns, set(protocol.splits) - {*source.splits}) == (
            protocol.max_turns,
            set(),
        )
    test, train = split_goals(12_087)
    assert (test, train) == (range(200), range(1000, 12_000))


def test_splits_cannot_be_chosen_beside_the_protocol() -> None:
    with pytest.raises(ConfigError, match="--paper names the splits itself"):
        make_plans(config(), request(splits=("dev",)))
    assert {plan.items for plan in make_plans(config(), request(items=5))} == {5}
    assert {plan.temperature for plan in make_plans(config(), request(temperature=0.8))} == {0.8}


def config() -> Config:
    return config_loading.load(EXAMPLE)
