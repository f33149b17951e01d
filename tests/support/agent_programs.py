"""Agent programs of a few lines, and rewards for them."""

from collections.abc import Callable

from agentrl.envs.contract import Environment, ToolCall

Play = Callable[..., Environment]
LOOK = ToolCall("look", {"thing": "mug"})


def reward_of(environment: Environment, answer: str) -> float:
    """Start a program and return the reward of its first outcome after an answer."""
    environment.start()
    return environment.call(answer).reward


PRELUDE = """\
import json, os, subprocess, sys, time, urllib.error, urllib.request
item = json.load(sys.stdin)

def ask(messages, headers={}, **more):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "messages": messages, **more}).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], **headers},
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

def said(answer):
    return json.loads(answer[1])["choices"][0]["message"]

def tool(name, *parameters):
    properties = {each: {"type": "string"} for each in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}

user = lambda text: {"role": "user", "content": text}
"""
REWARD = """\
def said(item, result):
    return result.last_line == item["answer"], 0.5

def told(item, result):
    import json, pathlib
    pathlib.Path(item["into"]).write_text(json.dumps([*result.messages]))
    return float(result.turns)

def ends(item, result):
    import json, pathlib
    ends = [each[-1]["content"] for each in result.conversations]
    pathlib.Path(item["into"]).write_text(json.dumps(ends))
    return float(result.turns)

def each(item, result):
    return 2.0, 1.0, [None, 0.5]
"""
