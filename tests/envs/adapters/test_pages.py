"""The configurations that the pages of adapters show, as a reader copies them.

Those of harbor, openenv, reasoning-gym and verifiers are played by the tests of their adapters."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from adapter_pages import PAGES, configurations

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.envs.contract import Item, Message, Outcome, ToolCall
from agentrl.envs.play import outcome_of, take_turns
from agentrl.ops.tasks.task_sources import task_sources

WORLDS = Path(__file__).parents[3] / "docs" / "examples" / "worlds"
LONGEST = 15  # lines of a configuration


def written(item: Item) -> dict[str, str]:
    """Return the arguments that write the note which the item asks for."""
    return {"name": item.content["note"], "text": item.content["text"]}


def free_cell(draw: Random, messages: Sequence[Message]) -> str:
    """Return one of the moves that the game names as available."""
    return draw.choice(re.findall(r"\[\d\]", messages[-1].content.rpartition("Available Moves")[2]))


Move = Callable[[Random, Sequence[Message], Item], ToolCall]
MOVES: dict[str, tuple[str, Move]] = {
    "lake": (
        "gymnasium",
        lambda draw, *_: ToolCall("act", {"action": draw.choice(["down", "right"])}),
    ),
    "number": (
        "textarena",
        lambda draw, *_: ToolCall("act", {"action": f"[{draw.randint(1, 30)}]"}),
    ),
    "tictactoe": (
        "textarena",
        lambda draw, messages, _: ToolCall("act", {"action": free_cell(draw, messages)}),
    ),
    "notes": ("mcp", lambda _draw, _messages, item: ToolCall("write", written(item))),
}


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_shows_short_configurations_without_an_unknown_key(page: Path) -> None:
    for block in configurations(page):
        assert len(block.splitlines()) <= LONGEST
        assert config_loading.loads(block).tasks


def test_every_adapter_has_a_page_with_a_configuration() -> None:
    shown = {page.stem for page in PAGES.glob("*.md") if configurations(page)}
    assert shown == {
        "gymnasium",
        "harbor",
        "mcp",
        "openenv",
        "reasoning-gym",
        "textarena",
        "verifiers",
    }


@pytest.mark.parametrize("task", MOVES)
def test_the_configuration_of_a_page_plays_its_episodes(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, move = MOVES[task]
    pytest.importorskip(adapter, reason=f"needs pip install 'agentrl-system[{adapter}]'")
    page = PAGES / f"{adapter}.md"
    (block,) = [each for each in configurations(page) if f"[tasks.{task}]" in each]
    lay_out(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.syspath_prepend(str(tmp_path))
    outcomes = played(config_loading.loads(block), task, move)
    assert outcomes
    assert all(outcome.done for outcome in outcomes)
    assert max(outcome.reward for outcome in outcomes) > 0, "no episode of random moves has won"


def lay_out(page: Path, folder: Path) -> None:
    """Write the files that a page shows beside its configuration."""
    for name in ("notes_server.py", "notes.jsonl"):
        shutil.copy(WORLDS / name, folder)
    for program in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
        for name in re.findall(r"# (\w+\.py)", program):
            (folder / name).write_text(program, "utf-8")


def played(config: Config, task: str, move: Move) -> list[Outcome]:
    """Play forty episodes; return how they ended."""
    (source,), draw, outcomes = task_sources(config).values(), Random(0), []
    for item in source.items(config.tasks[task].split)[:40]:

        def agent(messages: Sequence[Message], item: Item = item) -> list[ToolCall]:
            return [move(draw, messages, item)]

        with closing(source.make(item)) as environment:
            first = environment.start().messages
            turns = list(take_turns(environment, first, agent, source.max_turns))
        outcomes.append(outcome_of(first, turns))
    return outcomes
