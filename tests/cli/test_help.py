import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.core.processes.torch_environment import (
    CARD_ORDER,
    KERNEL_CACHES,
    THREAD_WAITS,
    WAIT_POLICY,
)

HEAVY = "torch transformers numpy sqlalchemy alembic celery kombu pika docker streamlit starlette"


def verbs() -> Iterator[tuple[str, ...]]:
    """Every command line that runs something."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        children = getattr(command, "commands", None)
        if children is None:
            yield (name,)
        else:
            yield from ((name, child) for child in children)


def helped(*verb: str) -> str:
    code = "from agentrl.cli.main import main; main()"
    command = [sys.executable, "-X", "importtime", "-c", code, *verb, "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert not imported & set(HEAVY.split())
    return ended.stdout


def test_help_imports_nothing_heavy() -> None:
    assert "quickstart" in helped()


@pytest.mark.parametrize("verb", [("eval",), ("run", "fork"), ("dashboard",), ("warmstart",)])
def test_help_of_a_verb_imports_nothing_heavy(verb: tuple[str, ...]) -> None:
    assert "Example: agentrl" in helped(*verb)


@pytest.mark.parametrize("verb", ["", "status", "eval", "eval compare"])
def test_the_short_word_for_help_is_understood_everywhere(verb: str) -> None:
    answer = CliRunner().invoke(app, [*verb.split(), "-h"], prog_name="agentrl")
    assert answer.exit_code == 0
    assert f"Usage: agentrl {verb}".rstrip() in answer.output


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ({}, "128 64 1000 PCI_BUS_ID"),
        ({"LRU_CACHE_CAPACITY": "7", "GOMP_SPINCOUNT": "9"}, "128 7 9 PCI_BUS_ID"),
        ({"OMP_WAIT_POLICY": "active"}, "128 64 None PCI_BUS_ID"),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "128 64 1000 FASTEST_FIRST"),
    ],
)
def test_the_environment_of_torch_is_set_where_the_user_does_not(
    own: dict[str, str], found: str
) -> None:
    names = [*KERNEL_CACHES, *THREAD_WAITS, *CARD_ORDER]
    code = "import os\nfrom agentrl.cli.main import main\ntry: main()\n"
    code += f"finally: print(*(os.environ.get(name) for name in {names}))"
    environment = {k: v for k, v in os.environ.items() if k not in (*names, WAIT_POLICY)} | own
    command = [sys.executable, "-c", code, "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert ended.stdout.splitlines()[-1] == found


def test_the_version_is_told() -> None:
    answer = CliRunner().invoke(app, ["--version"])
    assert (answer.exit_code, answer.output) == (0, f"agentrl-system {version('agentrl-system')}\n")


def test_no_summary_of_a_command_is_cut() -> None:
    for group in ("", "run", "db", "dead", "eval", "model", "config", "envs", "data", "experiment"):
        answer = CliRunner().invoke(app, [*group.split(), "--help"])
        summaries = answer.output.partition("Commands:")[2]
        assert summaries
        assert "..." not in summaries, group


def test_every_verb_has_help_with_an_example() -> None:
    command = get_command(app)
    for verb in verbs():
        found = command
        for word in verb:
            found = found.commands[word]  # type: ignore[attr-defined]
        example = rf"Example: ([A-Z_]+=\S+ )?agentrl {' '.join(verb)} "
        assert re.search(example, found.help or ""), verb
