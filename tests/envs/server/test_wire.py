"""What the protocol says of turns, answers and malformed bodies."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.core.types import TRAINABLE, Status
from agentrl.envs.contract import Message, Outcome, ToolCall, TurnTerms
from agentrl.envs.server import wire


def _joined(text: str) -> str:
    """Join the halves of characters that stand side by side, as JSON does."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


texts = st.text(st.characters()).map(_joined)  # lone halves too: an agent may write them
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
tool_calls = st.lists(
    st.builds(ToolCall, st.text(), st.dictionaries(st.text(), values, max_size=3), st.text())
)


@given(calls=tool_calls | texts)
def test_a_turn_survives_the_trip(calls: list[ToolCall] | str) -> None:
    body = wire.encode({"session_id": 1, "messages": [wire.assistant(calls)]})
    read, _ = wire.turn(wire.decode(body, wire.Interact).messages[-1])
    assert read == calls


@given(text=texts, done=st.booleans(), reward=st.floats(-1, 1))
def test_an_outcome_survives_the_trip(text: str, done: bool, reward: float) -> None:
    outcome = Outcome((Message("tool", text, "act"),), done, Status.COMPLETED, reward, reward)
    sent = wire.encode(wire.outcome_answer(outcome, (), ["call_0"]))
    answer = wire.decode(sent, wire.EnvOut)
    assert [wire.message(each) for each in answer.messages] == list(outcome.messages)
    assert answer.messages[0].tool_call_id == "call_0"
    assert (answer.finish, answer.reward) == (done, reward)


@given(text=st.text(), most=st.none() | st.integers(1), trained=st.booleans())
def test_where_an_answer_belongs_and_what_it_asks_survive_the_trip(
    text: str, most: int | None, trained: bool
) -> None:
    said = Message("assistant", text, calls=(ToolCall("act", {"n": 1}),), turn=2)
    terms = TurnTerms(most, (text,), trained)
    outcome = Outcome((said, Message("user", text)), terms=terms, follows=0)
    answer = wire.decode(wire.encode(wire.outcome_answer(outcome, (), [])), wire.EnvOut)
    assert [wire.message(each) for each in answer.messages] == list(outcome.messages)
    assert (answer.terms, answer.follows) == (terms, 0)


def test_rewards_of_branches_survive_the_trip() -> None:
    outcome = Outcome((), done=True, reward=1.0, branch_rewards={2: 0.5, 3: -1.0})
    answer = wire.decode(wire.encode(wire.outcome_answer(outcome, (), [])), wire.EnvOut)
    assert answer.branch_rewards == outcome.branch_rewards


@given(value=values)
def test_any_value_survives_the_trip(value: Any) -> None:
    assert json.loads(wire.encode(value)) == value
    body = wire.decode(
        wire.encode({"session_id": 1, "custom_task": {"v": value}}), wire.StartSample
    )
    assert body.custom_task == {"v": value}
    plain = json.dumps({"session_id": 1, "custom_task": {"v": value}}).encode()
    assert wire.decode(plain, wire.StartSample) == body


def test_text_in_parts_is_read_as_one() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    body = {"session_id": 1, "messages": [{"role": "assistant", "content": parts}]}
    read = wire.decode(json.dumps(body).encode(), wire.Interact)
    assert wire.turn(read.messages[0]) == ("ab", [])
    answer = {"messages": [{"role": "user", "content": parts, "name": None}], "tools": None}
    said = wire.decode(json.dumps(answer).encode(), wire.EnvOut)
    assert wire.message(said.messages[0]) == Message("user", "ab")


def test_statuses_that_train_map_both_ways() -> None:
    assert {wire.OUTCOMES[wire.STATUSES[status]] for status in TRAINABLE} == TRAINABLE
    assert wire.OUTCOMES["agent context limit"] == Status.TASK_LIMIT
    assert wire.OUTCOMES["agent validation failed"] == Status.INVALID_ACTION
    assert not {"task error", "cancelled", "unknown"} & set(wire.OUTCOMES)


@pytest.mark.parametrize("arguments", ["{", "[1]", "nope", '{"a": NaN}', "[" * 100_000])
def test_arguments_that_are_no_object_reach_the_environment_as_an_error(arguments: str) -> None:
    call: dict[str, Any] = {"id": "x", "function": {"name": "act", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    body = json.dumps({"session_id": 1, "messages": [message]}).encode()
    calls, ids = wire.turn(wire.decode(body, wire.Interact).messages[0])
    assert isinstance(calls[0], ToolCall)
    assert calls[0].error
    assert ids == ["x"]


@given(body=st.binary(max_size=200))
def test_bytes_that_are_no_body_are_malformed(body: bytes) -> None:
    with pytest.raises(wire.MalformedBody):
        wire.decode(body, wire.Cancel)


def test_a_malformed_body_names_its_field() -> None:
    with pytest.raises(wire.MalformedBody, match=r"\$\.session_id"):
        wire.decode(b'{"session_id": "one", "messages": []}', wire.Interact)
    with pytest.raises(wire.MalformedBody, match=r"\$\.messages"):
        wire.decode(b'{"session_id": 1, "messages": []}', wire.Interact)
