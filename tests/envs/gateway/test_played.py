"""A program in the loop that trains: its tokens are those that were sent and sampled."""

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from agent_programs import Play
from policy_servers import CLAIMED, FixedPool, serve
from running import ROOT

from agentrl.core.config.sections import Sampling
from agentrl.core.trajectory import Trajectory
from agentrl.core.trajectory_body import check
from agentrl.core.types import Status
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.envs.contract import Environment
from agentrl.serving.engine_api import ModelLimits as EngineLimits
from agentrl.serving.engine_api import Request
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.episode import EpisodeLoop
from agentrl.workers.episode_context import EpisodeContext, EpisodeLimits
from agentrl.workers.policies.client import PolicyClient
from agentrl.workers.policies.pool import Sampler

TEMPLATE = ChatTemplate.load(ROOT / "models" / "tiny")

TALKS = """
messages, lengths = [user("?")], []
for turn in range(3):
    answer = json.loads(ask(messages)[1])
    usage = answer["usage"]
    reason = answer["choices"][0]["finish_reason"]
    lengths.append([usage["prompt_tokens"], usage["completion_tokens"], reason])
    messages += [answer["choices"][0]["message"], user("and " + item["id"])]
open(item["into"], "w").write(json.dumps([m.get("content") for m in messages] + lengths))
print("blue")
"""


def test_text_goes_to_a_program_and_tokens_to_the_trajectory(play: Play, tmp_path: Path) -> None:
    turns: list[tuple[list[int], list[int]]] = []

    def script(request: Request) -> Sequence[int]:
        source = random.Random(len(turns))
        tokens = [source.randrange(10, 500) for _ in range(6 + 10 * (len(turns) == 1))]
        tokens = [*tokens, *sorted(request.stop_ids)[:1]]
        turns.append((request.prompt, tokens[: request.max_tokens]))
        return tokens

    body = played(play(TALKS), script)
    assert (body.status, body.reward, body.score) == (Status.COMPLETED, 1.0, 0.5)
    tokens = body.tokens().tolist()
    assert [(tokens[: s.start], tokens[s.start : s.end]) for s in body.steps] == turns
    told = json.loads((tmp_path / "told.json").read_text())
    assert told[7:] == [[s.start, s.end - s.start, s.finish_reason] for s in body.steps]
    assert [each[2] for each in told[7:]] == ["stop", "length", "stop"]
    for text, (_, sampled) in zip(told[1:6:2], turns, strict=True):
        ended = sampled[-1] in TEMPLATE.stop_ids
        assert text == TEMPLATE.decode(sampled[:-1] if ended else sampled)


STOPS = """
asked = {"messages": [user("?")], "stop": ["mug"], "max_tokens": 5}
answer = json.loads(ask(**asked)[1])["choices"][0]
first = [answer["message"]["content"], answer["finish_reason"]]
asked["messages"] += [answer["message"], user("more")]
answer = json.loads(ask(**asked)[1])["choices"][0]
open(item["into"], "w").write(json.dumps([first, answer["finish_reason"]]))
print("blue")
"""


def test_a_turn_ends_where_its_request_says(play: Play, tmp_path: Path) -> None:
    said = TEMPLATE.encode("the mug on it")
    ends = next(n for n in range(len(said)) if "mug" in TEMPLATE.decode(said[:n]))
    scripts = [said, TEMPLATE.encode("a b c d e f g h")]
    body = played(play(STOPS), lambda _: scripts.pop(0))
    (stopped, cut) = body.steps
    tokens = body.tokens().tolist()
    assert tokens[stopped.start : stopped.end] == said[:ends]
    assert (stopped.finish_reason, cut.finish_reason) == ("stop", "length")
    assert cut.end - cut.start == 5
    assert body.mask().sum() == ends + 5
    assert json.loads((tmp_path / "told.json").read_text()) == [["the ", "stop"], "length"]


BRANCHES = """
from concurrent.futures import ThreadPoolExecutor
look = tool("look", "thing")
title = [{"role": "system", "content": "write titles"}, user("?")]
said(ask(title))
messages = [user("?")]
for turn in range(2):
    messages += [said(ask(messages, tools=[look])), user("and")]
asked = json.loads(ask(messages, tools=[look], n=2)[1])["choices"]
messages += [asked[1]["message"], user("more")]
with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda n: ask([*messages, user(str(n))], tools=[look]), range(2)))
compacted = [user("so far"), messages[3], user("go on")]
messages = [*compacted, said(ask(compacted)), user("at last")]
ask(messages)
print("blue")
"""


def test_every_call_of_a_program_that_branches_is_trained_once_after_its_prompt(
    play: Play,
) -> None:
    turns: list[tuple[list[int], list[int]]] = []

    def script(request: Request) -> Sequence[int]:
        source = random.Random(len(turns))
        tokens = [source.randrange(10, 500) for _ in range(4)]
        turns.append((request.prompt, tokens))
        return tokens

    body = played(play(BRANCHES, untrained=["write titles"]), script)
    tokens = body.tokens().tolist()
    spans = [(tokens[s.context : s.start], tokens[s.start : s.end]) for s in body.steps]
    assert sorted(spans) == sorted(turns)
    title, *others = body.steps
    assert not title.trained
    assert all(step.trained for step in others)
    assert body.mask().sum() == 4 * len(others) == 4 * 8
    # two turns, n = 2, two at once after the second of them, then a conversation of two turns
    assert body.parents() == [None, None, 1, 2, 2, 4, 4, None, 7]
    compacted = body.steps[7]
    assert tokens[body.steps[2].start : body.steps[2].end] == turns[2][1]
    assert TEMPLATE.decode(turns[2][1]) in TEMPLATE.decode(
        tokens[compacted.context : compacted.start]
    )


def played(environment: Environment, script: Callable[[Request], Sequence[int]]) -> Trajectory:
    """Play with a policy that says what the script says; return the body, which is well-formed."""
    engine = ScriptedEngine(script, limits=EngineLimits(1024, 4096))
    with serve(engine, {"c": ("current", Path())}) as server, closing(PolicyClient()) as client:
        context = EpisodeContext(
            template=TEMPLATE,
            style="plain",
            stop_ids=sorted(TEMPLATE.stop_ids),
            sampling=Sampling(max_step_tokens=12, max_tokens=400),
            client=client,
            clock=time.time,
            stop=threading.Event(),
        )
        pool = FixedPool(LivePolicy("s", server.url, "current", "c", 0))
        sampler = Sampler(pool, context.sampling, "seed")
        body = EpisodeLoop(CLAIMED, "run", environment, sampler, context).run(
            EpisodeLimits(12, 60.0, 5.0)
        )
    check(body)
    return body
