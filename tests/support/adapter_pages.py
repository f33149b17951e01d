"""The configurations that the pages of adapters show."""

import re
from pathlib import Path

from agentrl.core import config_loading
from agentrl.core.config.sections.tasks import Task

PAGES = Path(__file__).parents[2] / "docs" / "adapters"


def configurations(page: Path) -> list[str]:
    """Return the blocks of a page that configure a task."""
    blocks = re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "source = " in block]


def task_of_page(adapter: str) -> Task:
    """Return the task that the first configuration of an adapter's page has."""
    block = configurations(PAGES / f"{adapter}.md")[0]
    (task,) = config_loading.loads(block).tasks.values()
    return task
