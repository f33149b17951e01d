"""One scripted conversation, recorded by us, by OpenEnv's capture and by verifiers' trace.

    program ─▶ our gateway ─▶ scripted policy                          ─▶ trajectory ─┐
    program ─▶ capture of openenv, interception of verifiers ─▶ endpoint ─▶ its graph ─┴▶ same tree

The program is the same file, and so are the answers. The peers run in their own Python.
"""

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_programs import LOOK, PRELUDE, Play
from gateway_episodes import TEMPLATE, played
from openai_endpoint import Answer, serve_endpoint

from agentrl.core.trajectory import Trajectory
from agentrl.envs.contract import ToolCall
from agentrl.serving.engine_api import Request
from agentrl.workers.conversation.toolcalls import render

CLIENT = """
from concurrent.futures import ThreadPoolExecutor
look = tool("look", "thing")

def turn(messages, headers={}, tools=[look]):
    return said(ask(messages, headers, tools=tools))

# plain turns, then a call and its result
history = [{"role": "system", "content": "act"}, user("hello")]
history += [turn(history), user("which colour")]
history.append(turn(history))
(call,) = history[-1]["tool_calls"]
history.append({"role": "tool", "tool_call_id": call["id"], "content": "mug is blue"})
# a request that its client marks as a retry
seen = turn(history, {"x-stainless-retry-count": "0"})
assert turn(history, {"x-stainless-retry-count": "1"}) == seen
history += [seen, user("sure")]
# the same question again, with another answer
turn(history)
history.append(turn(history))
# two requests at once
with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda side: turn([*history, user(side)]), ["left", "right"]))
# a title, by another system prompt and without tools
said(ask([{"role": "system", "content": "write titles"}, user("title")]))
# the same history with another tool
turn([*history, user("more tools")], tools=[look, tool("take", "thing")])
# a result cut short: what follows it was not sampled after it
cut = [*history[:5], history[5] | {"content": "cut"}, *history[6:], user("after the cut")]
turn(cut)
# history compacted to a summary and the last answer
compacted = [user("so far"), history[-1], user("go on")]
compacted += [turn(compacted), user("at last")]
turn(compacted)
# several answers to one request
ask([user("several")], n=2)
print("blue")
"""
ANSWERS: Mapping[str, Sequence[str | ToolCall]] = {
    "hello": ["hi"],
    "which colour": [LOOK],
    "mug is blue": ["blue"],
    "sure": ["no", "yes"],
    "left": ["to the left"],
    "right": ["to the right"],
    "title": ["a colour"],
    "more tools": [LOOK],
    "after the cut": ["still blue"],
    "go on": ["going"],
    "at last": ["done"],
    "several": ["one", "two"],
}

OPENENV = """
import json, os, socket, subprocess, sys
from openenv.core.harness.capture import CaptureServer

given = json.load(sys.stdin)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = CaptureServer(llm_url=given["url"], model="scripted", port=port)
server.start()
session = server.registry.create()
env = {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": session.session_id}
subprocess.run(given["program"], env=os.environ | env, input=b"{}", check=True, stdout=2)
nodes = session.graph.nodes()
names = [node.node_id for node in nodes]
steps = [
    {
        "messages": node.request_messages,
        "answer": {"role": "assistant", **node.response_message},
        "parent": names.index(node.parent_id) if node.parent_id else None,
    }
    for node in nodes
]
print(json.dumps({"steps": steps, "findings": session.findings}))
server.stop()
"""

VERIFIERS = """
import asyncio, json, os, sys
import verifiers.v1 as vf
from verifiers.v1 import graph
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.trace import AgentInfo, Trace, TraceTask

def plain(message):
    fields = message.model_dump(exclude_none=True)
    calls = [{"function": each} for each in fields.pop("tool_calls", None) or []]
    return fields | {"tool_calls": calls}

def before(trace, number):
    "The latest sampled message before a node."
    while number is not None and not trace.nodes[number].sampled:
        number = trace.nodes[number].parent
    return number

async def main():
    given = json.load(sys.stdin)
    client = EvalClientConfig(base_url=given["url"], api_key_var="SCRIPTED_KEY")
    task = TraceTask(type="Scripted", data=vf.TaskData(idx=0, prompt="?"))
    trace = Trace(task=task, agent=AgentInfo(config=AgentConfig()))
    session = RolloutSession(ctx=ModelContext("scripted", client), trace=trace)
    server = InterceptionServer()
    async with server, server.acquire(session) as (url, secret, _):
        env = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": secret}
        process = await asyncio.create_subprocess_exec(
            *given["program"], env=os.environ | env, stdin=asyncio.subprocess.PIPE, stdout=2)
        await process.communicate(b"{}")
        assert process.returncode == 0, process.returncode
    sampled = [number for number, node in enumerate(trace.nodes) if node.sampled]
    steps = []
    for number in sampled:
        node = trace.nodes[number]
        parent = before(trace, node.parent)
        steps.append({
            "messages": [plain(each) for each in graph.path(trace, node.parent)],
            "answer": plain(node.message),
            "parent": None if parent is None else sampled.index(parent),
        })
    print(json.dumps({"steps": steps, "findings": [str(each) for each in trace.errors]}))

asyncio.run(main())
"""

Said = tuple[str, str]  # a message: its role, its text with its calls
Step = tuple[tuple[Said, ...], Said]  # a request's messages, the answer
Link = tuple[Step, Step | None]  # a step, and the one that it follows
SEVERAL: Counter[Link] = Counter(  # both peers refuse `n`
    (((("user", "several"),), ("assistant", each)), None) for each in ("one", "two")
)


class Script:
    """Answers by the last message of a request; the last of several answers is repeated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = {asked: list(answers) for asked, answers in ANSWERS.items()}

    def answer(self, asked: str) -> str | ToolCall:
        with self._lock:
            left = self._left[asked]
            return left.pop(0) if left[1:] else left[0]

    def sample(self, request: Request) -> Sequence[int]:
        """Return the tokens of an answer, as a policy of ours samples them."""
        answer = self.answer(_messages(_text(request.prompt))[-2][1])
        text = answer if isinstance(answer, str) else render(answer, "plain")
        return [*TEMPLATE.encode(text), TEMPLATE.end_id]

    def complete(self, body: dict[str, Any]) -> Answer:
        """Return a completion as an engine does: its tokens are bytes of the tools and messages."""
        answer = self.answer(body["messages"][-1]["content"])
        message: dict[str, Any] = {"role": "assistant", "content": answer}
        if isinstance(answer, ToolCall):
            function = {"name": answer.name, "arguments": json.dumps(answer.arguments)}
            call = {"id": "call_1", "type": "function", "function": function}
            message |= {"content": None, "tool_calls": [call]}
        sampled = list(f"{_said(message)[1]}|".encode())
        pairs = [{"token": "", "logprob": -1.0, "top_logprobs": []} for _ in sampled]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
            "token_ids": sampled,
            "logprobs": {"content": pairs},
        }
        texts = [json.dumps(body.get("tools"))]
        texts += (f"{role}:{text}|" for role, text in map(_said, body["messages"]))
        prompt = list("".join([*texts, "assistant:"]).encode())
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "scripted",
            "choices": [choice],
            "prompt_token_ids": prompt,
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }


def test_the_tree_equals_that_of_openenv_s_capture(
    play: Play, tmp_path: Path, openenv_python: Path
) -> None:
    """But for a retry, which it samples anew, as a sibling."""
    ours = links_of(played(play(CLIENT), Script().sample, step_tokens=24))
    theirs = recorded(openenv_python, OPENENV, tmp_path)
    (retried,) = (link for link in ours if link[0][0][-1] == ("tool", "mug is blue"))
    assert theirs - ours == Counter([retried])
    assert ours - theirs == SEVERAL


@pytest.mark.slow  # verifiers takes 6 s to import
def test_the_tree_equals_that_of_verifiers_trace(
    play: Play, tmp_path: Path, verifiers_python: Path
) -> None:
    ours = links_of(played(play(CLIENT), Script().sample, step_tokens=24))
    theirs = recorded(verifiers_python, VERIFIERS, tmp_path)
    assert theirs - ours == Counter()
    assert ours - theirs == SEVERAL


def links_of(body: Trajectory) -> Counter[Link]:
    """Return the steps of a trajectory, read from its tokens."""
    tokens = body.tokens().tolist()
    steps: list[Step] = []
    for each in body.steps:
        *asked, opening = _messages(_text(tokens[each.context : each.start]))
        text = _text(tokens[each.start : each.end])
        ((role, answer),) = _messages(f"<|{opening[0]}|>{text}")
        steps.append((tuple(asked), (role, answer)))
    parents = (None if at is None else steps[at] for at in body.parents())
    return Counter(zip(steps, parents, strict=True))


def recorded(python: Path, recorder: str, folder: Path) -> Counter[Link]:
    """Play the program with a peer's recorder; return what it recorded."""
    program = folder / "client.py"
    program.write_text(PRELUDE + CLIENT)
    with serve_endpoint(Script().complete) as endpoint:
        given = {"url": endpoint.url, "program": [sys.executable, str(program)]}
        done = subprocess.run(
            [python, "-c", recorder],
            check=False,
            input=json.dumps(given),
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["findings"] == []
    steps: list[Step] = [
        (tuple(map(_said, each["messages"])), _said(each["answer"])) for each in found["steps"]
    ]
    parents = (None if each["parent"] is None else steps[each["parent"]] for each in found["steps"])
    return Counter(zip(steps, parents, strict=True))


def _text(tokens: Sequence[int]) -> str:
    return TEMPLATE.tokenizer.decode(list(tokens), skip_special_tokens=False)


def _messages(text: str) -> list[Said]:
    """Return the messages in a rendered prompt."""
    found = re.findall(r"<\|(system|user|tool|assistant)\|>([^<]*)(?:<\|end\|>)?", text)
    return [(role, said) for role, said in found]


def _said(message: Mapping[str, Any]) -> Said:
    """Return a message of OpenAI's API, with its calls as our policy writes them."""
    calls = (
        ToolCall(each["function"]["name"], json.loads(each["function"]["arguments"]))
        for each in message.get("tool_calls") or []
    )
    text = (message.get("content") or "") + "".join(render(each, "plain") for each in calls)
    return message["role"], text
