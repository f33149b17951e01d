from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_policies import judge_policy
from judged_workers import Judged
from run_transitions import World
from takeovers import Workers

from agentrl.broker.api import Broker


@pytest.fixture
def judged(world: World, link: Broker, model_dir: Path) -> Iterator[Judged]:
    with judge_policy(world.store, world.run_id) as endpoint:
        workers = Workers(world, link, model_dir)
        yield Judged(workers, endpoint)
        workers.close()
