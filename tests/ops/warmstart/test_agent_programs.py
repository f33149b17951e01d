"""A warm start from an agent program that rewrites its history, so that each turn is a branch."""

import json
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest
from agent_programs import PRELUDE

from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.config.sections.tasks import Task
from agentrl.envs.gateway.task_source import GatewaySource
from agentrl.ops.warmstart.demonstrations import Demonstrator, encode
from agentrl.ops.warmstart.play import Player, scores
from agentrl.serving.engine_api import Completion, Request
from agentrl.workers.conversation.template import ChatTemplate

TEMPLATE = ChatTemplate.load(Path(__file__).parents[3] / "models" / "tiny")
PROGRAM = """\
look, done = tool("look", "thing"), tool("done", "colour")
seen = said(ask([user("where?")], tools=[look]))["tool_calls"][0]["function"]
told = {"role": "assistant", "content": "Called " + seen["name"]}
last = said(ask([user("where?"), told, user("it is blue")], tools=[look, done]))
print(json.loads(last["tool_calls"][0]["function"]["arguments"])["colour"])
"""
EXPERT = """\
def expert(item, messages, fault):
    if messages[-1]["content"] == "it is blue":
        return {"name": "done", "arguments": {"colour": "blue"}}
    return {"name": "look", "arguments": {"thing": "mug"}}

def reward(item, result):
    return float(result.last_line == "blue")
"""
LOOK, DONE = 'look{"thing":"mug"}', 'done{"colour":"blue"}'
FIRST = "<|user|>where?<|assistant|>"
SECOND = f"{FIRST}Called look<|end|><|user|>it is blue<|assistant|>"


@pytest.fixture
def rewriting(tmp_path: Path) -> GatewaySource:
    (tmp_path / "program.py").write_text(PRELUDE + PROGRAM)
    (tmp_path / "functions.py").write_text(EXPERT)
    (tmp_path / "items.jsonl").write_text(json.dumps({"id": "one"}))
    functions = tmp_path / "functions.py"
    return GatewaySource(
        {
            "program": [sys.executable, str(tmp_path / "program.py")],
            "items": str(tmp_path / "items.jsonl"),
            "reward": f"{functions}:reward",
            "expert": f"{functions}:expert",
        }
    )


class Scripted:
    """Says what the expert says, by the prompt, and keeps the prompts."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def submit(self, request: Request) -> Future[Completion]:
        self.prompts.append(TEMPLATE.tokenizer.decode(request.prompt, skip_special_tokens=False))
        text = DONE if "it is blue" in self.prompts[-1] else LOOK
        tokens = [*TEMPLATE.encode(text), TEMPLATE.end_id]
        future: Future[Completion] = Future()
        future.set_result(Completion(tokens, [-1.0] * len(tokens), "stop"))
        return future


def test_only_the_expert_s_turns_are_learned_from(rewriting: GatewaySource) -> None:
    demonstrator = Demonstrator(rewriting, Task(), "plain", noise=0.0)
    (transcript,) = demonstrator.episodes(1, seed=0)
    lessons = encode(transcript, TEMPLATE, "plain")
    texts = [
        TEMPLATE.tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        for lesson in lessons
        for tokens in (lesson.token_ids, lesson.token_ids[lesson.mask == 1])
    ]
    first, second = f"{LOOK}<|end|>", f"{DONE}<|end|>"
    assert texts == [FIRST + first, first, SECOND + second, second]


def test_a_policy_plays_each_branch_with_its_own_history(rewriting: GatewaySource) -> None:
    engine = Scripted()
    player = Player(engine, "p", TEMPLATE, "plain", Sampling())
    assert scores(player, rewriting, rewriting.items("train"), None, seed=0) == [1.0]
    assert engine.prompts == [FIRST, SECOND]
