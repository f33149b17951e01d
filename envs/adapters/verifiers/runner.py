"""Runs in the environment of verifiers: lists a taskset's tasks, or plays one episode.

    python runner.py list < {"env", "items"}                     ─▶ a JSON line for each task
    python runner.py play < {"env", "index", "hash", "max_turns"} ─▶ a JSON line: reward, metrics

It imports nothing of AgentRL. Model calls go to OPENAI_BASE_URL, the episode's own endpoint.
"""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config

LOCAL = {"type": "subprocess"}  # a harness runs beside this program unless the user says otherwise


def main() -> None:
    """Do what the first argument says."""
    asked = json.load(sys.stdin)
    sys.stdout, results = sys.stderr, sys.stdout  # what a taskset prints is no result
    if sys.argv[1] == "list":
        for line in tasks(asked):
            print(json.dumps(line), file=results, flush=True)
    else:
        print(json.dumps(asyncio.run(play(asked))), file=results, flush=True)


def environment(asked: dict[str, Any]) -> Any:
    """Make the environment, with local harnesses of bounded turns."""
    given = asked["env"]
    kind = env_config_type(given["taskset"]["id"], given.get("id", ""))
    roles = [name for name, each in kind.model_fields.items() if is_role(each.default)]
    for name in roles:
        defaults = {"runtime": LOCAL, "max_turns": asked.get("max_turns")}
        given[name] = defaults | given.get(name, {})
    return load_environment(resolve_env_config(given))


def is_role(default: object) -> bool:
    """Tell whether a field of an environment's configuration is an agent."""
    return isinstance(default, AgentConfig)


def tasks(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the first tasks of the taskset."""
    for index, task in enumerate(itertools.islice(environment(asked).taskset, asked["items"])):
        yield {"index": index, "hash": task.hash}


async def play(asked: dict[str, Any]) -> dict[str, Any]:
    """Play one episode; exit with the reason where verifiers says that it failed."""
    made = environment(asked)
    task = next(itertools.islice(made.taskset, asked["index"], None), None)
    if task is None or task.hash != asked["hash"]:
        sys.exit(f"task {asked['index']} is not the one that was listed: install one version")
    url = os.environ["OPENAI_BASE_URL"]
    client = vf.EvalClientConfig(base_url=url, api_key_var="OPENAI_API_KEY")
    async with made.serving():
        episode = await made.run_episode(task, vf.ModelContext(model="agentrl", client=client))
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        sys.exit("; ".join(f"{each.type}: {each.message}" for each in errors) or "not ok")
    traces = [trace for trace in episode.traces if trace.agent.trainable]
    numbers = {name: each for trace in traces for name, each in trace.metrics.items()}
    for trace in traces:
        numbers |= {name: each.score for name, each in trace.rewards.items() if each is not None}
    metrics = {name: float(each) for name, each in numbers.items() if each is not None}
    return {"reward": sum(trace.reward for trace in traces), "metrics": metrics}


if __name__ == "__main__":
    main()
