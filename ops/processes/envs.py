"""The env server process: serves the configured tasks with envs/server/server.py.

It uses neither database nor broker.
"""

import threading

from agentrl.core.config.config import Config
from agentrl.envs.server.server import serve


def run(config: Config, stop: threading.Event) -> None:
    """Serve environments until SIGTERM."""
    serve(config.tasks, config.envs, config.run.name, stop)
