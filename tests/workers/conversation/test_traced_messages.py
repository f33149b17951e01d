"""What of a conversation stands in the spans of its attempt."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from policy_servers import LOOK, FixedPool, ScriptedEnvironment, won
from scripted_episodes import MemoryJournal, run_episode

from agentrl.core.telemetry import tracing
from agentrl.core.telemetry.tracing import Sink, Span
from agentrl.envs.contract import Message, Observation, Outcome, Tool, ToolCall, strings
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.traced_messages import (
    MESSAGES_KEPT,
    TEXT_KEPT,
    TracedMessages,
)
from agentrl.workers.episode_context import EpisodeContext
from agentrl.workers.policies.client import Completion

MESSAGES = {"input_messages", "output_messages", "system_instructions"}
TOOL = {"tool", "tool_call_id", "tool_arguments", "tool_result"}
FIRST = (Message("system", "talk"), Message("user", "which mug?"))
TAKE = strings("take", "Take a thing.", "thing")


@pytest.fixture
def spans() -> Iterator[list[Span]]:
    """Spans of this process, with messages."""
    found: list[Span] = []
    tracing.set_sink(Sink(found.append, 1.0, lambda _: None, messages=True))
    yield found
    tracing.set_sink(None)


def find_spans(spans: Sequence[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def read(span: Span, field: str) -> Any:
    return json.loads(str(span.fields[field]))


def text(content: str) -> dict[str, str]:
    return {"type": "text", "content": content}


def attempt() -> Any:
    return tracing.attempt(tracing.attempt_context("r", "e", 1))


def completion_of(template: ChatTemplate, words: str, reason: str = "stop") -> Completion:
    ids = template.encode(words) + ([template.end_id] if reason == "stop" else [])
    return Completion(ids, [0.0] * len(ids), reason)


def test_a_trace_holds_no_message_unless_the_configuration_says_so(
    pool: FixedPool, context: EpisodeContext
) -> None:
    found: list[Span] = []
    tracing.set_sink(Sink(found.append, 1.0, lambda _: None))
    try:
        with attempt():
            run_episode(ScriptedEnvironment(["and?"], won()), pool, context)
    finally:
        tracing.set_sink(None)
    assert {"policy", "environment", "episode"} <= {span.name for span in found}
    assert not [span for span in found if span.fields.keys() & (MESSAGES | TOOL)]


def test_the_spans_of_an_episode_hold_each_message_once(
    pool: FixedPool, context: EpisodeContext, spans: list[Span]
) -> None:
    with attempt():
        run_episode(ScriptedEnvironment(["and?", "or?"], won()), pool, context)
    policies = find_spans(spans, "policy")
    heard = [message for span in policies for message in read(span, "input_messages")]
    assert [each["parts"] for each in heard] == [
        [text("talk")],
        [text("which mug?")],
        [text("and?")],
        [text("or?")],
    ]
    assert [len(read(span, "output_messages")) for span in policies] == [1, 1, 1]
    (root,) = find_spans(spans, "episode")
    assert read(root, "system_instructions") == [text("talk")]
    assert read(root, "input_messages") == [{"role": "user", "parts": [text("which mug?")]}]
    assert root.fields["output_messages"] == policies[-1].fields["output_messages"]


def test_an_attempt_that_continues_another_holds_what_that_one_sampled(
    pool: FixedPool, context: EpisodeContext, spans: list[Span]
) -> None:
    answers, journal = ["and?", "or?", "so?"], MemoryJournal()
    with attempt():
        run_episode(ScriptedEnvironment(answers, won()), pool, context, journal=journal)
    said = [read(span, "output_messages")[0]["parts"][0] for span in find_spans(spans, "policy")]
    spans.clear()
    with attempt():
        again = MemoryJournal(journal.steps[:2])
        run_episode(ScriptedEnvironment(answers, won()), pool, context, journal=again)
    first, last = find_spans(spans, "policy")
    heard = [(each["role"], each["parts"]) for each in read(first, "input_messages")]
    assert heard == [
        ("system", [text("talk")]),
        ("user", [text("which mug?")]),
        ("assistant", [said[0]]),
        ("user", [text("and?")]),
        ("assistant", [said[1]]),
        ("user", [text("or?")]),
    ]
    assert [each["parts"] for each in read(last, "input_messages")] == [[text("so?")]]


def test_a_turn_of_two_policies_has_its_calls_where_it_ends(
    template: ChatTemplate, spans: list[Span]
) -> None:
    begun = completion_of(template, 'look{"th', "abort")
    ended = completion_of(template, 'ing":"mug"}')
    with attempt():
        traced = TracedMessages(FIRST, template, "plain")
        traced.begin()
        first = traced.policy_fields([], begun, [LOOK])
        second = traced.policy_fields(begun.token_ids, ended, [LOOK])
    (message,) = json.loads(str(first["output_messages"]))
    assert message["parts"] == [text('look{"th')]
    assert message["finish_reason"] == "abort"
    assert "input_messages" not in second
    (message,) = json.loads(str(second["output_messages"]))
    call = {"type": "tool_call", "id": "0.0", "name": "look", "arguments": {"thing": "mug"}}
    assert message["parts"] == [text('ing":"mug"}'), call]
    assert spans


def test_calls_of_one_turn_and_their_results_have_the_same_ids(
    template: ChatTemplate, spans: list[Span]
) -> None:
    calls = [ToolCall("look", {"thing": "mug"}), ToolCall("take", {"thing": "mug"})]
    outcome = Outcome((Message("tool", "blue"), Message("tool", "taken"), Message("user", "and?")))
    turn = completion_of(template, 'look{"thing":"mug"}take{"thing":"mug"}')
    tools: list[Tool] = [LOOK, TAKE]
    with attempt():
        traced = TracedMessages(FIRST, template, "plain")
        said = traced.policy_fields([], turn, tools)
        fields = dict(traced.environment_fields(calls, outcome))
        traced.observe(outcome.messages)
        alone = traced.policy_fields([], completion_of(template, "mug"), tools)
        assert traced.environment_fields("mug", Outcome((Message("user", "no"),))) == {}
        traced.environment_fields(calls[:1], Outcome((), done=True))
    (message,) = json.loads(str(said["output_messages"]))
    assert [part["id"] for part in message["parts"][1:]] == ["0.0", "0.1"]
    results = [each["parts"][0] for each in json.loads(str(alone["input_messages"]))]
    assert results == [
        {"type": "tool_call_response", "id": "0.0", "response": "blue"},
        {"type": "tool_call_response", "id": "0.1", "response": "taken"},
        text("and?"),
    ]
    named_calls = [{"name": each.name, "arguments": each.arguments} for each in calls]
    assert json.loads(str(fields.pop("tool_arguments"))) == named_calls
    assert fields == {"tool": "look, take", "tool_result": "blue\ntaken\nand?"}
    assert spans


class Talks(ScriptedEnvironment):
    """Begins with many long messages."""

    def start(self) -> Observation:
        return Observation((*FIRST, *(Message("user", "é" * 2 * TEXT_KEPT) for _ in range(70))))


def test_what_a_span_holds_is_bounded_and_stays_json(
    template: ChatTemplate, spans: list[Span]
) -> None:
    long = "a" * 5 * TEXT_KEPT
    with attempt():
        traced = TracedMessages(Talks([], won()).start().messages, template, "plain")
        traced.begin()
        fields = traced.policy_fields([], completion_of(template, "mug"), [])
        call = ToolCall("look", {"thing": long})
        environment = traced.environment_fields([call], Outcome((Message("tool", long),)))
    messages = json.loads(str(fields["input_messages"]))
    assert len(messages) == MESSAGES_KEPT
    for message in messages:
        assert message["parts"][0]["content"].endswith(f"… ({2 * TEXT_KEPT} characters)")
    assert all(len(str(value)) < 1.01 * TEXT_KEPT for value in environment.values())
    (root,) = find_spans(spans, "episode")
    assert len(read(root, "input_messages")) == MESSAGES_KEPT
