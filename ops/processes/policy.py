"""The policy server process: serves one [[policy]] with serving/policy.py."""

import threading

from agentrl.core.config import Config
from agentrl.ops.configuration.serving import serving_config
from agentrl.ops.runs.begin import opened
from agentrl.serving.policy import Followed, serve_policy


def run(config: Config, stop: threading.Event, name: str = "") -> None:
    """Serve checkpoints until SIGTERM. `name`: of the [[policy]]; empty: the first."""
    server = config.policy_server(name)
    with opened(config, stop) as here:
        followed = Followed(here.run_id, here.store, here.broker)
        serve_policy(serving_config(config), server, followed, stop)
