"""What a policy is asked for a request, and what becomes of its tokens."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.contract import Message, strings
from agentrl.envs.gateway import chat
from agentrl.envs.gateway.messages import DialogueReply, RequestRefused
from agentrl.ops.serve.chat_policy import TOO_LONG, ChatPolicy
from agentrl.serving.engine_api import ModelLimits, Request
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.conversation.conversation import Conversation
from agentrl.workers.conversation.template import ChatTemplate

TEMPLATE = ChatTemplate.load(Path(__file__).parents[3] / "models" / "tiny")
LOOK = strings("look", "Look at a thing.", "thing")
USER = {"role": "user", "content": "What is it?"}
LIMITS = ModelLimits(vocabulary=TEMPLATE.vocab_size, context=256)


class Speaker:
    """A policy that says one text, and what it was asked."""

    def __init__(self, text: str, *, ends: bool = True) -> None:
        self.asked: list[Request] = []
        self._tokens = [*TEMPLATE.encode(text), *([TEMPLATE.end_id] if ends else [])]
        engine = ScriptedEngine(self._script, limits=LIMITS)
        engine.load("p", Path())
        self._policy = ChatPolicy(engine, "p", TEMPLATE, "plain")

    def answer(self, messages: Sequence[Any] = (USER,), **fields: Any) -> dict[str, Any]:
        """The body of the answer."""
        body = json.dumps({"model": "m", "messages": messages, **fields})

        async def reply() -> DialogueReply:
            return await self._policy.reply(chat.read(body.encode()))

        answer: dict[str, Any] = json.loads(chat.answer(asyncio.run(reply())))
        return answer

    def _script(self, request: Request) -> Sequence[int]:
        self.asked.append(request)
        return self._tokens


def test_a_history_with_calls_has_the_tokens_that_an_episode_has() -> None:
    call = 'look{"thing":"mug"}'
    first = Speaker(call).answer(tools=[LOOK.schema()])["choices"][0]["message"]
    [asked] = first["tool_calls"]
    said = Speaker("blue")
    answer = {"role": "tool", "tool_call_id": asked["id"], "content": "It is blue."}
    body = said.answer([USER, first, answer], tools=[LOOK.schema()])
    assert body["choices"][0]["message"]["content"] == "blue"
    episode = Conversation(TEMPLATE, [LOOK], [Message("user", "What is it?")])
    tokens = [*TEMPLATE.encode(call), TEMPLATE.end_id]
    episode.append_sampled(tokens, [0.0] * len(tokens), 0)
    episode.observe([Message("tool", "It is blue.", "look")])
    assert said.asked[0].prompt == episode.prompt()
    assert body["usage"]["prompt_tokens"] == len(episode)


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ('look{"thing":"mug"}', [{"thing": "mug"}]),
        ('look{"thing":"mug"} look{"thing":"cup"}', [{"thing": "mug"}, {"thing": "cup"}]),
        ('look{"thing":7}', [{"thing": 7}]),  # the program says what is wrong with it
        ("look{}", [{}]),  # here, too
        ('look{"thing":"mug"', None),
        ('peek{"thing":"mug"}', None),
        ("a mug", None),
    ],
)
def test_a_turn_is_calls_where_all_of_them_can_be_read(
    text: str, called: list[dict[str, Any]] | None
) -> None:
    [choice] = Speaker(text).answer(tools=[LOOK.schema()])["choices"]
    if called is None:
        assert choice["message"] == {"role": "assistant", "content": text}
        assert choice["finish_reason"] == "stop"
        return
    calls = choice["message"]["tool_calls"]
    assert [json.loads(each["function"]["arguments"]) for each in calls] == called
    assert len({each["id"] for each in calls}) == len(called)
    assert choice["finish_reason"] == "tool_calls"


def test_calls_are_text_where_the_request_has_no_tools() -> None:
    [choice] = Speaker('look{"thing":"mug"}').answer()["choices"]
    assert choice["message"]["content"] == 'look{"thing":"mug"}'


def test_one_call_a_turn_where_parallel_ones_are_not_wanted() -> None:
    speaker = Speaker('look{"thing":"mug"} look{"thing":"cup"}')
    [choice] = speaker.answer(tools=[LOOK.schema()], parallel_tool_calls=False)["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"thing": "mug"}'


class SlowEngine(ScriptedEngine):
    """An engine that says its limits once `released` is set."""

    def __init__(self) -> None:
        super().__init__(lambda _: [TEMPLATE.end_id], limits=LIMITS)
        self.released = threading.Event()

    def limits(self, policy: str) -> ModelLimits:
        assert self.released.wait(20), "nobody else could run"
        return super().limits(policy)


def test_other_requests_are_answered_while_a_prompt_is_rendered() -> None:
    engine = SlowEngine()
    engine.load("p", Path())
    policy = ChatPolicy(engine, "p", TEMPLATE, "plain")
    request = chat.read(json.dumps({"messages": [USER]}).encode())

    async def both() -> DialogueReply:
        reply = asyncio.ensure_future(policy.reply(request))
        await asyncio.sleep(0)  # it begins
        engine.released.set()
        return await reply

    assert asyncio.run(both()).turns[0].message.content == ""


def test_a_turn_ends_before_the_stop_text_and_its_tokens_with_it() -> None:
    body = Speaker("one two three").answer(stop=["two", "three"], logprobs=True)
    [choice] = body["choices"]
    assert choice["message"]["content"] == "one "
    assert choice["finish_reason"] == "stop"
    tokens = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in tokens).startswith("one two")
    assert "three" not in "".join(each["token"] for each in tokens)
    assert body["usage"]["completion_tokens"] == len(tokens)


def test_an_answer_fills_what_the_context_leaves_and_says_that_it_was_cut() -> None:
    speaker = Speaker("on and on " * 200, ends=False)
    body = speaker.answer(max_tokens=100_000)
    assert body["usage"]["total_tokens"] == LIMITS.context
    assert body["choices"][0]["finish_reason"] == "length"


def test_several_turns_are_sampled_with_seeds_of_their_own() -> None:
    speaker = Speaker("yes")
    body = speaker.answer(n=3, seed=7, temperature=0.5)
    assert [each["index"] for each in body["choices"]] == [0, 1, 2]
    assert [each.seed for each in speaker.asked] == [7, 8, 9]
    assert {each.temperature for each in speaker.asked} == {0.5}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_p", 0.9),
        ("top_k", 40),
        ("frequency_penalty", 0.5),
        ("logit_bias", {"5": 10}),
        ("reasoning_effort", "high"),
        ("temperature", 0.001),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(RequestRefused) as caught:
        Speaker("yes").answer(tools=[LOOK.schema()], **{field: value})
    assert caught.value.field == field


def test_values_without_effect_are_accepted() -> None:
    neutral = {"top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": 0.0, "logit_bias": {}}
    assert Speaker("yes").answer(**neutral)["choices"][0]["message"]["content"] == "yes"


def test_a_conversation_beyond_the_context_is_refused_in_words_that_programs_know() -> None:
    with pytest.raises(RequestRefused, match="maximum context length is 256 tokens") as caught:
        Speaker("yes").answer([USER | {"content": "far too long " * 300}])
    assert caught.value.code == TOO_LONG
