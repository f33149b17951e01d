"""What `origin = "agentbench"` reads besides the files that users get: a catalogue, built once."""

from collections.abc import Callable
from pathlib import Path

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.datasets import locate
from agentrl.envs.tasks.webshop.catalogue.catalogue import build
from agentrl.envs.tasks.webshop.datasets import AGENTBENCH, agentbench_products
from agentrl.envs.tasks.webshop.task_source import INDEX


def prepare(data: str, folder: str, told: Callable[[int], None]) -> str:
    """Build it in `folder`, webshop/index of the data folder where empty; what was made.

    `told`: the number of products so far. Raises ItemError.
    """
    into = Path(folder) if folder else locate(AGENTBENCH, data) / INDEX
    try:
        return f"{build(agentbench_products(data), into, told):,} products in {into}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ItemError(f"webshop: a product is not as the benchmark's: {error!r}") from error
