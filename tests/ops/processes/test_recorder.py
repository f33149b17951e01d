"""The recorder process, before a broker that has lost the run's queues."""

import threading
from contextlib import closing
from pathlib import Path

import pytest
from running import ROOT, eventually

from agentrl import broker
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.types import RunState
from agentrl.db.store import open_store
from agentrl.db.transitions import runs
from agentrl.ops.processes import recorder
from agentrl.ops.runs.begin import begin


@pytest.mark.parametrize("is_over", [False, True])
def test_a_recorder_declares_lost_queues_again_unless_its_run_is_over(
    tmp_path: Path, is_over: bool
) -> None:
    model = Model(path=str(ROOT / "models" / "tiny"))
    config = Config(tasks={"dbbench": Task()}, run=Run(home=str(tmp_path)), model=model)
    run_id = begin(config)
    stop = threading.Event()
    with closing(broker.connect(config.broker_url())) as link:
        with closing(open_store(config.store_url())) as store:
            if is_over:
                store.transact(lambda s: runs.move_run(s, run_id, RunState.STOPPED))
            link.delete_run(run_id)
            process = threading.Thread(target=recorder.run, args=(config, stop))
            process.start()
            eventually(
                lambda: store.ask(lambda s: runs.find_run(s, config.run.name).recorder),  # type: ignore[union-attr]
                within_s=60,
                text=lambda: "the recorder did not start",
            )
        assert link.queues_exist(run_id) is not is_over
        stop.set()
        process.join()
