"""The task sources of a configuration: in this process, or behind the env server."""

from agentrl.core.config.config import Config
from agentrl.envs import registry
from agentrl.envs.contract import TaskSource


def task_sources(config: Config) -> dict[str, TaskSource]:
    """Return the task sources of the mixture: in this process, or behind the env server."""
    if config.envs.url:
        from agentrl.envs.server.client import RemoteSource

        return {
            name: RemoteSource(config.envs, name, task.options, task.source)
            for name, task in config.tasks.items()
        }
    from agentrl.envs.call_timeouts import TimeLimitedSource

    limit_s = min(config.envs.call_timeout_s, config.worker.attempt_deadline_s)
    return {
        name: TimeLimitedSource(registry.source(name, task.options, task.source), limit_s)
        for name, task in config.tasks.items()
    }
