"""The dispatcher's process: every task's items, and the loop of workers/dispatch/dispatcher.py."""

import threading
from contextlib import ExitStack, closing

from agentrl.core.config import Config
from agentrl.envs.sources import sources
from agentrl.ops.runs.begin import opened
from agentrl.workers.app import Sender, celery_app
from agentrl.workers.dispatch.dispatcher import EXPIRES, Dispatcher
from agentrl.workers.dispatch.item_stream import ItemStream
from agentrl.workers.dispatch.run_metrics import told


def run(config: Config, stop: threading.Event) -> None:
    """Admit groups and send their episodes until the run is over or `stop` is set."""
    with opened(config, stop) as here, ExitStack() as stack:
        streams = {
            name: ItemStream(source.items(config.tasks[name].split), config.run.seed)
            for name, source in sources(config).items()
        }
        loop = Dispatcher(config, here.run_id, here.store, streams)
        if config.metrics.port:
            look_s = config.metrics.look_s
            stack.enter_context(told(here.store, here.broker, here.run_id, look_s))
        app = celery_app(config, here.run_id)
        expires_s = EXPIRES * config.dispatch.claim_timeout_s
        loop.serve(stack.enter_context(closing(Sender(app, expires_s=expires_s))), stop)
