"""Runs where verifiers 0.4.0 is installed: its own `Env` plays scripted episodes of five turns.

    python verifiers_arm.py URL CONCURRENCY WARM EPISODES [program]

Task set and harness are plugins, as verifiers wants them. The harness plays within this process, as
its docs allow ("a harness may run its loop in-process … as long as every model call goes through
`endpoint`"), over one aiohttp client; `program`: its own `null` harness instead, a process for each
episode, which is what it does by default. Prints turns, seconds and processor seconds as JSON.
"""

import asyncio
import json
import resource
import sys
import time
from importlib import import_module
from pathlib import Path

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

TURNS = 5
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at a thing.",
            "parameters": {
                "type": "object",
                "properties": {"thing": {"type": "string"}},
                "required": ["thing"],
            },
        },
    }
]
ANSWER = "A table, a lamp and a book."


class LookTask(vf.Task):
    """Scored by nothing: the reward is no part of the comparison."""


class Looks(vf.Taskset[LookTask]):
    """A thousand equal tasks."""

    def load(self):
        return [LookTask(vf.TaskData(prompt="Look around."), self.config.task) for _ in range(1000)]


class InProcess(vf.Harness[vf.HarnessConfig]):
    """The scripted environment: five model calls, an answer to each."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    http = None

    async def launch(self, ctx, _trace, _runtime, endpoint, secret, _urls, data, **_rest):
        messages = [{"role": "user", "content": data.prompt}]
        headers = {"authorization": f"Bearer {secret}"}
        for _ in range(TURNS):
            body = {"model": ctx.model, "messages": messages, "tools": TOOLS, "max_tokens": 16}
            url = f"{endpoint}/chat/completions"
            async with self.http.post(url, json=body, headers=headers) as response:
                response.raise_for_status()
                said = (await response.json())["choices"][0]["message"]
            messages += [
                {"role": "assistant", "content": None, "tool_calls": said["tool_calls"]},
                {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": ANSWER},
            ]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["InProcess", "Looks"]


def used() -> float:
    """Processor seconds of this process and of those it ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


async def play(env, ctx, count: int, concurrency: int) -> int:
    """So many episodes; how many turns they had."""
    places, tasks = asyncio.Semaphore(concurrency), list(env.taskset)
    slots = [env.slots(tasks[n % len(tasks)])[0] for n in range(count)]
    episodes = await asyncio.gather(*(env.run_slot(slot, ctx, places) for slot in slots))
    for episode in episodes:
        if not episode.ok:
            raise SystemExit(f"an episode of verifiers failed: {episode.traces} {episode.errors}")
    return sum(trace.num_turns for episode in episodes for trace in episode.traces)


async def main(url: str, concurrency: int, warm: int, count: int, how: str = "within") -> None:
    agent = {"runtime": {"type": "subprocess"}, "max_turns": TURNS}
    agent["harness"] = {"id": "null" if how == "program" else "verifiers_arm"}
    env = load_environment(resolve_env_config({"taskset": {"id": "verifiers_arm"}, "agent": agent}))
    client = vf.EvalClientConfig(base_url=f"{url}/v1", api_key_var="NONE")
    ctx = vf.ModelContext(model="scripted", client=client)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        env.serving(),
    ):
        import_module("verifiers_arm").InProcess.http = http  # the plugin, as verifiers loaded it
        await play(env, ctx, warm, concurrency)
        began, before = time.perf_counter(), used()
        turns = await play(env, ctx, count, concurrency)
        print(
            json.dumps({"turns": turns, "s": time.perf_counter() - began, "cpu_s": used() - before})
        )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:5]), *sys.argv[5:]))
