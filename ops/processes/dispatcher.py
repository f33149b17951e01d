"""The dispatcher process: loads the items of all tasks and runs workers/dispatch/dispatcher.py."""

import threading
from contextlib import ExitStack, closing

from agentrl.core.config.config import Config
from agentrl.ops.runs.begin import open_run
from agentrl.ops.tasks.task_sources import task_sources
from agentrl.trainer.algorithm.presets import batch_groups
from agentrl.workers.dispatch.dispatcher import EXPIRES, Dispatcher, DispatcherConfig
from agentrl.workers.dispatch.item_stream import ItemStream
from agentrl.workers.dispatch.run_metrics import export_run_metrics
from agentrl.workers.queue.celery_app import CommandSender, celery_app


def run(config: Config, stop: threading.Event) -> None:
    """Admit groups and send their episodes until the run is over or `stop` is set."""
    with open_run(config, stop) as here, ExitStack() as stack:
        streams = {
            name: ItemStream(source.items(config.tasks[name].split), config.run.seed)
            for name, source in task_sources(config).items()
        }
        loop = Dispatcher(dispatcher_config(config), here.run_id, here.store, streams)
        if config.metrics.port:
            look_s = config.metrics.look_s
            stack.enter_context(export_run_metrics(here.store, here.broker, here.run_id, look_s))
        app = celery_app(config.tasks_url(), here.run_id)
        expires_s = EXPIRES * config.dispatch.claim_timeout_s
        loop.serve(stack.enter_context(closing(CommandSender(app, expires_s=expires_s))), stop)


def dispatcher_config(config: Config) -> DispatcherConfig:
    """Return the dispatcher's part of the configuration."""
    fewest, _ = batch_groups(config.trainer, config.dispatch)
    return DispatcherConfig(config.dispatch, config.tasks, fewest)
