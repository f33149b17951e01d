"""Signals as they were, for tests of what takes them over; a recipe of a tiny policy."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.ops.quickstart.recipes import Recipe, Size

SMALL = """
[model]
path = "models/tiny"
call_style = "plain"
[tasks.dbbench.options]
style = "compact"
[tasks.alfworld]
max_turns = 8
[tasks.alfworld.options]
style = "compact"
[dispatch]
groups_per_update = 4
group_size = 4
[sampling]
max_step_tokens = 32
max_tokens = 512
[[policy]]
name = "policy"
tracks = ["current", "lagged(1)"]
[trainer.lora]
rank = 4
"""


@pytest.fixture
def small_recipe() -> Callable[[Path], Recipe]:
    """Makes one in a folder: two updates of a policy that clones experts for three steps."""

    def made(folder: Path) -> Recipe:
        file = folder / "small.toml"
        file.write_text(SMALL)
        size = Size(updates=2, items=6, clones=3, episodes=8)
        return Recipe("small", file, "tiny", full=size, fast=size, ready_s=600.0, stall_s=600.0)

    return made
