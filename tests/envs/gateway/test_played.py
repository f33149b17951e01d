"""A program in the loop that trains: its tokens are those that were sent and sampled."""

import json
import random
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from agent_programs import Play
from gateway_episodes import TEMPLATE, played

from agentrl.core.types import Status
from agentrl.serving.engine_api import Request

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


LOGPROBS = """
import openai
client = openai.OpenAI()
asked = {"model": "m", "messages": [user("?")], "logprobs": True}
whole = client.chat.completions.create(**asked).choices[0]
with client.chat.completions.stream(**asked) as stream:
    streamed = stream.get_final_completion().choices[0]
found = []
for choice in (whole, streamed):
    tokens = choice.logprobs.content
    assert b"".join(bytes(each.bytes) for each in tokens).decode() == choice.message.content
    assert "".join(each.token for each in tokens) == choice.message.content
    found.append([each.logprob for each in tokens])
title = [{"role": "system", "content": "write titles"}, user("?")]
asked["messages"] = title
assert client.chat.completions.create(**asked).choices[0].logprobs is None
open(item["into"], "w").write(json.dumps(found))
print("blue")
"""


@pytest.mark.skipif(not find_spec("openai"), reason="the package openai is missing")
def test_the_log_probabilities_of_sampled_tokens_are_told(play: Play, tmp_path: Path) -> None:
    scripts = [
        TEMPLATE.encode("blue, or a 日本 mug"),
        [*TEMPLATE.encode("a müg"), TEMPLATE.end_id],
        TEMPLATE.encode("title"),
    ]
    body = played(
        play(LOGPROBS, untrained=["write titles"]), lambda _: scripts.pop(0), step_tokens=40
    )
    told = json.loads((tmp_path / "told.json").read_text())
    first, second, _ = body.steps
    logprobs = body.behaviour().tolist()
    assert told == [logprobs[first.start : first.end], logprobs[second.start : second.end - 1]]


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
