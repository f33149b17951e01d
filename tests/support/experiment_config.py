"""A configuration so small that experiments run in tests."""

from pathlib import Path

MODEL = Path(__file__).parents[2] / "models" / "tiny-kg"
EASY = """
[tasks.kg.options]
style = "compact"
difficulty = "easy"
items = 8
test_items = 4
"""


def configuration(tasks: str = EASY, dispatch: str = "", trainer: str = "") -> str:
    """A file's text: two groups of four episodes a round, of a policy of models/."""
    return f"""
[model]
path = "{MODEL}"
{tasks}
[dispatch]
groups_per_update = 2
group_size = 4
{dispatch}

[sampling]
strategy = "current"
max_step_tokens = 24
max_tokens = 256

[trainer]
learning_rate = 5e-4
{trainer}
"""
