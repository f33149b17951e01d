"""Checks the judges of a configuration's tasks."""

import math

from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError, nearest
from agentrl.serving.engines import EXTERNAL
from agentrl.workers.judging.scorers import load_judge_function, load_prompt, require_pattern


def check_judges(config: Config) -> None:
    """Raise ConfigError unless each judge is one model or function that can be asked and read."""
    for task, section in config.tasks.items():
        judge, key = section.judge, f"tasks.{task}.judge"
        if judge.policy and judge.function:
            raise ConfigError(f"{key}: policy and function are both set", hint="remove one")
        if not -math.inf < judge.low < judge.high < math.inf:
            raise ConfigError(f"{key}.low: {judge.low:g} is not below high, {judge.high:g}")
        if judge.function:
            load_judge_function(task, judge)
        if not judge.policy:
            continue
        servers = {server.name: server for server in config.policy_servers()}
        if judge.policy not in servers:
            near = nearest(judge.policy, servers)
            raise ConfigError(f"{key}.policy: no [[policy]] is named {judge.policy}{near}")
        server = servers[judge.policy]
        if server.engine != EXTERNAL or server.external.tokens:
            raise ConfigError(
                f"{key}.policy: {judge.policy} is not an external chat model, so it cannot judge",
                hint='name a [[policy]] with engine = "external" and tokens = false',
            )
        load_prompt(task, judge)
        require_pattern(task, judge)
