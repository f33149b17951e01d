import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.core.config.sections.run import Run
from agentrl.core.config_loading import command, loads
from agentrl.core.errors import ConfigError

LEAST = "[tasks.dbbench]\n"


def test_the_environment_overrides_the_file() -> None:
    environ = {
        "AGENTRL__DISPATCH__GROUP_SIZE": "4",
        "AGENTRL__RUN__NAME": "other",
        "AGENTRL__RUN__STOP_SUCCESS": "0.5",
        "AGENTRL__TRAINER__MIXED_SEQUENCES": "true",
        "AGENTRL__TASKS__ALFWORLD__WEIGHT": "3.0",
        "AGENTRL_DEBUG": "1",
    }
    config = loads(f'[run]\nname = "mine"\n{LEAST}', environ=environ)
    assert config.dispatch.group_size == 4
    assert config.run == Run(name="other", stop_success=0.5)
    assert config.trainer.mixed_sequences is True
    assert config.tasks["alfworld"].weight == 3.0


def test_an_override_with_a_slip_is_refused() -> None:
    said = r"^AGENTRL__DISPATCH__GROUP_SISE: unknown key dispatch\.group_sise; did you mean"
    with pytest.raises(ConfigError, match=said):
        loads(LEAST, environ={"AGENTRL__DISPATCH__GROUP_SISE": "4"})
    with pytest.raises(ConfigError, match=r"^AGENTRL__DISPATCH__GROUP_SIZE: .* got `str`"):
        loads(LEAST, environ={"AGENTRL__DISPATCH__GROUP_SIZE": "many"})
    with pytest.raises(ConfigError, match="AGENTRL__WORKERS__MANY: workers is not a section"):
        loads(f"workers = 1\n{LEAST}", environ={"AGENTRL__WORKERS__MANY": "4"})


@pytest.mark.parametrize(
    "table",
    ["AGENTRL__EVAL__VLLM__ENV", "AGENTRL__TASKS__ENV__OPTIONS__ENV", "AGENTRL__eval__vllm__env"],
)
def test_an_override_cannot_name_a_variable_whose_letters_matter(table: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^{table}__MY__GPU: variable names are converted to lower case"
    ) as caught:
        loads(LEAST, environ={f"{table}__MY__GPU": "0"})
    assert caught.value.hint == f"set the whole table: {table}='{{MY__GPU = \"…\"}}'"
    loads(LEAST, environ={table: '{MY__GPU = "0"}'})


def test_a_table_of_the_environment_keeps_its_letters() -> None:
    environ = {"AGENTRL__EVAL__VLLM__ENV": '{CUDA_VISIBLE_DEVICES = "0"}'}
    assert loads(LEAST, environ=environ).eval.vllm.env == {"CUDA_VISIBLE_DEVICES": "0"}
    assert loads(LEAST, environ={"AGENTRL__TASKS__ENV__WEIGHT": "2.0"}).tasks["env"].weight == 2.0


def test_an_override_makes_no_second_task_of_one_with_capitals() -> None:
    environ = {"AGENTRL__TASKS__SHOP__WEIGHT": "2.0"}
    with pytest.raises(ConfigError, match=r"^AGENTRL__TASKS__SHOP__WEIGHT: .* the task is Shop$"):
        loads("[tasks.Shop]\n", environ=environ)
    assert loads("[tasks.Shop]\n[tasks.shop]\n", environ=environ).tasks["shop"].weight == 2.0
    assert loads(LEAST, environ=environ).tasks["shop"].weight == 2.0


@pytest.mark.parametrize(
    ("text", "verb"),
    [
        ("[dispatch]\ngroup_size = 1\n", "agentrl config keys dispatch"),
        ("[trainer.deepspeed]\nzero = 7\n", "agentrl config keys trainer.deepspeed"),
        ("[tasks.Shop]\nweight = 0.0\n", "agentrl config keys tasks"),
        ("[[policy]]\nport = 1\n", "agentrl config keys policy"),
        ("[eval.vllm.env]\na = 1\n", "agentrl config keys eval.vllm"),
        ("workers = 0\n", "agentrl config keys workers"),
    ],
)
def test_a_wrong_value_names_the_verb_that_tells_what_its_section_takes(
    text: str, verb: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text + LEAST)
    assert caught.value.hint == f"see `{verb}` for the values of each key"


def test_a_command_that_is_told_carries_the_overrides_of_this_process() -> None:
    environ = {
        "AGENTRL__RUN__NAME": "other one",
        "AGENTRL__RUN__HOME": "runs/$x",
        "AGENTRL__SAMPLING__MAX_TOKENS": "64",
        "AGENTRL_DEBUG": "1",
        "PATH": "/bin",
    }
    told = command("up", Path("a b.toml"), environ)
    assert told == (
        "AGENTRL__RUN__HOME='runs/$x' AGENTRL__RUN__NAME='other one' "
        "AGENTRL__SAMPLING__MAX_TOKENS=64 agentrl up 'a b.toml'"
    )
    show = f"import os; print(*(os.environ[name] for name in {list(environ)[:3]}), sep='|')"
    python = shlex.join([sys.executable, "-c", show])
    line = told.replace("agentrl up 'a b.toml'", python)
    said = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert said.stdout == "other one|runs/$x|64\n"
    assert command("down", Path("run.toml"), {"PATH": "/bin"}) == "agentrl down run.toml"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("STORE__URL", "postgresql+psycopg://me:hunter2@db/agentrl"),
        ("BROKER__URL", "hunter2"),
        ("BROKER__TASKS_URL", "hunter2"),
        ("RUN__CHECKPOINTS", "hunter2"),
        ("run__checkpoints", "hunter2"),
        ("EVAL__VLLM__ENV", "hunter2"),
        ("EVAL__VLLM__ARGS", '["--api-key", "hunter2"]'),
        ("ENVS__TOKEN_ENV", "hunter2"),
        ("TASKS__DBBENCH__OPTIONS__PASSWORD", "hunter2"),
        ("TASKS__DBBENCH__OPTIONS__SEED", "hunter2"),
        ("POLICY", '[{name = "a", external = {key_env = "hunter2"}}]'),
        ("STORE", '{url = "hunter2"}'),
        ("TRACKERS__MLFLOW_URL", "hunter2"),
        ("TRACKERS__FOLDER", "s3://me:hunter2@bucket"),
    ],
)
def test_no_secret_is_in_a_command_that_is_told(name: str, text: str) -> None:
    told = command("up", Path("run.toml"), {f"AGENTRL__{name}": text})
    assert told == f"AGENTRL__{name}=… agentrl up run.toml"
