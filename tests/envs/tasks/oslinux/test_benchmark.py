"""AgentBench's items on this machine's containers; skipped where data or Docker are not here."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial

import pytest

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.envs.contract import Item
from agentrl.envs.sandbox import sandbox
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.tasks.oslinux.problem import Script
from agentrl.envs.tasks.oslinux.task_source import OsSource


@pytest.fixture
def source(engine: Engine, sandbox_image: str) -> Iterator[OsSource]:
    source = OsSource({"origin": "agentbench", "spares": 0})
    try:
        source.items("dev")
    except ItemError as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        for pool in sandbox.make_sandboxes(source, engine, sandbox_image):
            stack.enter_context(closing(pool))
        yield source


SCRIPT_S = 120.0  # for the example


def passes(source: OsSource, item: Item) -> bool:
    """Whether what the item's own example prints is a right answer."""
    with closing(source.make(item)) as environment:
        try:
            environment.start()
            ran = environment.machine.run(Script(**item.content["example"]), (), SCRIPT_S)
            return environment.passes(ran.text.strip())
        except EnvironmentFailure:
            return False


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("split", "every"), [("dev", 1), ("train", 40)])
def test_items_pass_their_own_example(split: str, every: int, source: OsSource) -> None:
    items = [each for each in source.items(split) if each.content.get("example") is not None]
    with ThreadPoolExecutor(4) as threads:
        passed = list(threads.map(partial(passes, source), items[::every]))
    assert len(passed) >= 20
    assert passed == [True] * len(passed)
