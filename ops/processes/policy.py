"""The policy server process: serves one [[policy]] with serving/policy_process.py."""

import threading

from agentrl.core.config.config import Config
from agentrl.ops.configuration.serving import serving_config
from agentrl.ops.runs.begin import open_run
from agentrl.serving.policy_process import FollowedRun, serve_policy


def run(config: Config, stop: threading.Event, name: str = "") -> None:
    """Serve checkpoints until SIGTERM. `name`: of the [[policy]]; empty: the first."""
    server = config.policy_server(name)
    with open_run(config, stop) as here:
        followed = FollowedRun(here.run_id, here.store, here.broker)
        serve_policy(serving_config(config), server, followed, stop)
