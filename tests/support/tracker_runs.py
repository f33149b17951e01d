"""A run whose rows an exporter sends to trackers."""

from pathlib import Path

import run_history

from agentrl.core.config.config import Config
from agentrl.core.config.sections.monitoring import Trackers
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.db.store import Store


def tracker_config(home: Path) -> Config:
    """Return the configuration of a run whose rows are read often."""
    return Config(
        tasks={"dbbench": Task()},
        run=Run(name="run", home=str(home)),
        trackers=Trackers(look_s=0.05),
    )


def begin_tracked_run(config: Config) -> tuple[Store, str]:
    """Write a run with three updates and an evaluation."""
    store, run_id = run_history.begun(config.store_url(), config=config)
    run_history.trained(store, run_id, 3)
    with store.write() as session:
        figures = {"success": 0.25, "low": 0.05, "high": 0.7, "episodes": 4}
        session.add(run_history.evaluation(run_id, 3, task="dbbench", **figures))
    return store, run_id
