"""The env server's process: the tasks of the file, and `serve` of envs/server/server.py.

It knows no run: neither store nor broker.
"""

import threading

from agentrl.core.config import Config
from agentrl.envs.server.server import serve


def run(config: Config, stop: threading.Event) -> None:
    """Serve environments until SIGTERM."""
    serve(config.tasks, config.envs, config.run.name, stop)
