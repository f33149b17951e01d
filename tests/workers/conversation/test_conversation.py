from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.contract import Message, strings
from agentrl.ops.warmstart import tokenizer
from agentrl.workers.conversation.conversation import Conversation
from agentrl.workers.conversation.template import ChatTemplate

TOOLS = (strings("look", "Look at a thing.", "thing"),)
FIRST = (Message("system", "dbbench"), Message("user", "which mug?"))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(tokenizer.train(["look at the mug on the desk 1"], 300), folder)
    return ChatTemplate.load(folder)


COMPLETIONS = st.tuples(st.lists(st.integers(6, 250), max_size=8), st.booleans())
ANSWERS = st.lists(
    st.builds(Message, st.sampled_from(["tool", "user"]), st.text(max_size=20)),
    min_size=1,
    max_size=3,
)
TURNS = st.lists(st.tuples(COMPLETIONS, st.integers(0, 255), ANSWERS), max_size=6)


@given(turns=TURNS, first=st.text(max_size=20))
def test_tokens_are_the_concatenation_of_what_was_sent_and_sampled(
    template: ChatTemplate, turns: list[Any], first: str
) -> None:
    conversation = Conversation(template, TOOLS, [Message("user", first)])
    sent, spans = [conversation.prompt()], []
    for (ids, ends), policy, answer in turns:
        completion = ids + [template.end_id] * ends
        spans.append(
            (*conversation.append_sampled(completion, [-0.5] * len(completion), policy), policy)
        )
        assert conversation.prompt() == sent[-1] + completion
        conversation.observe(answer)
        sent.append(conversation.prompt())
        assert sent[-1][: len(sent[-2])] == sent[-2]
        expected = template.encode(template.tail(answer, TOOLS))[ends:]
        assert sent[-1] == sent[-2] + completion + expected

    arrays = conversation.arrays()
    tokens = np.frombuffer(arrays.token_ids, "<i4")
    mask = np.frombuffer(arrays.loss_mask, np.uint8)
    logprobs = np.frombuffer(arrays.logprobs, "<f4")
    policies = np.frombuffer(arrays.policy_index, np.uint8)
    assert tokens.tolist() == sent[-1]
    assert len(tokens) == len(mask) == len(logprobs) == len(policies) == len(conversation)
    covered = np.zeros(len(mask), np.uint8)
    for start, end, policy in spans:
        covered[start:end] = 1
        assert (policies[start:end] == policy).all()
    assert (mask == covered).all()
    assert (logprobs == np.where(mask, -0.5, 0)).all()
    assert all(end <= start for (_, end, _), (start, _, _) in pairwise(spans))


@given(words=st.lists(st.sampled_from(["look", "mug 2", "the desk"]), min_size=1, max_size=5))
def test_turn_by_turn_gives_the_tokens_of_the_whole_rendering(
    template: ChatTemplate, words: list[str]
) -> None:
    conversation, whole = Conversation(template, TOOLS, FIRST), [*FIRST]
    for word in words:
        ids = template.encode(word)
        conversation.append_sampled(ids, [0.0] * len(ids), 0)
        conversation.observe([Message("tool", word, "look")])
        whole += [Message("assistant", word), Message("tool", word, "look")]
    assert conversation.prompt() == template.encode(template.render(whole, TOOLS, generate=True))


def test_an_end_token_the_policy_did_not_emit_is_added_unlearned(template: ChatTemplate) -> None:
    cut, whole = (Conversation(template, TOOLS, FIRST) for _ in range(2))
    ids = template.encode("look")
    cut.append_sampled(ids, [-1.0] * len(ids), 0)
    whole.append_sampled([*ids, template.end_id], [-1.0] * (len(ids) + 1), 0)
    for conversation in (cut, whole):
        conversation.observe([Message("tool", "mug", "look")])
    assert cut.prompt() == whole.prompt()
    assert sum(cut.arrays().loss_mask) == len(ids)
    assert sum(whole.arrays().loss_mask) == len(ids) + 1


def test_what_was_sampled_is_never_tokenised_again(template: ChatTemplate) -> None:
    spelled = [token for letter in "look" for token in template.encode(letter)]
    assert spelled != template.encode("look")
    conversation = Conversation(template, TOOLS, FIRST)
    start, end = conversation.append_sampled(spelled, [-1.0] * 4, 0)
    conversation.observe([Message("tool", "mug", "look")])
    assert conversation.prompt()[start:end] == spelled


def test_masked_tokens_stand_in_the_conversation_but_not_in_the_loss(
    template: ChatTemplate,
) -> None:
    plain, masked = (Conversation(template, TOOLS, FIRST) for _ in range(2))
    ids = [*template.encode("look"), template.end_id]
    plain.append_sampled(ids, [-1.0] * len(ids), 3)
    span = masked.append_sampled(ids, [], 3, masked=True)
    for conversation in (plain, masked):
        conversation.observe([Message("tool", "mug", "look")])
    assert masked.prompt() == plain.prompt()
    arrays = masked.arrays()
    assert sum(arrays.loss_mask) == 0
    assert not np.frombuffer(arrays.logprobs, "<f4").any()
    assert list(arrays.policy_index[slice(*span)]) == [3] * len(ids)


def test_a_turn_of_several_spans_is_one_message_of_the_history(template: ChatTemplate) -> None:
    conversation = Conversation(template, TOOLS, FIRST)
    assert conversation.history() == [*FIRST]
    for word in ("look at", " the mug"):
        ids = template.encode(word)
        conversation.append_sampled(ids, [-1.0] * len(ids), 0)
    conversation.append_sampled([template.end_id], [-1.0], 1)
    assert conversation.history() == [*FIRST]
    answer = Message("tool", "a mug", "look")
    conversation.observe([answer])
    assert conversation.history() == [*FIRST, Message("assistant", "look at the mug"), answer]


def test_the_last_answer_adds_nothing(template: ChatTemplate) -> None:
    conversation = Conversation(template, TOOLS, FIRST)
    conversation.append_sampled([10], [-1.0], 0)
    before = conversation.prompt()
    conversation.observe([])
    assert conversation.prompt() == before


def test_tokens_without_their_logprobs_are_refused(template: ChatTemplate) -> None:
    with pytest.raises(ValueError, match="2 tokens with 1 log-probabilities"):
        Conversation(template, TOOLS, FIRST).append_sampled([10, 11], [-1.0], 0)
