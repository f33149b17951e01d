"""Branches of an episode: whatever is asked in whatever order, a sampled token is kept once."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import trajectory

from agentrl.core.errors import EnvironmentFailure, MessageError
from agentrl.core.trajectory import BranchReward, StepRecord, Trajectory
from agentrl.core.trajectory_body import check
from agentrl.envs.contract import Message, Outcome, ToolCall, strings
from agentrl.workers.conversation.branches import Branches
from agentrl.workers.conversation.conversation import Conversation
from agentrl.workers.conversation.template import ChatTemplate

TOOLS = (strings("look", "Look at a thing.", "thing"),)
FIRST = (Message("user", "which mug?"),)
MORE = Message("user", "more")


class Played:
    """Samples turns and keeps what the policy read and wrote."""

    def __init__(self, template: ChatTemplate) -> None:
        self.branches = Branches(Conversation, template, "plain", TOOLS, FIRST)
        self.read: list[list[int]] = []
        self.wrote: list[list[int]] = []
        self._steps: list[tuple[int, StepRecord]] = []

    def sample(self, tokens: list[int]) -> None:
        conversation = self.branches.current
        self.read.append(conversation.prompt())
        self.wrote.append(tokens)
        logprobs = [-1.0 - number for number in range(len(tokens))]
        start, end = conversation.append_sampled(tokens, logprobs, 1)
        step = trajectory().steps[0]
        spanned = msgspec.structs.replace(step, policy_index=1, start=start, end=end)
        self._steps.append((self.branches.number, spanned))
        self.branches.end_turn()

    def body(self) -> Trajectory:
        arrays, steps, _ = self.branches.flatten(self._steps, 1 << 20)
        return msgspec.structs.replace(
            trajectory(),
            token_ids=arrays.token_ids,
            loss_mask=arrays.loss_mask,
            logprobs=arrays.logprobs,
            policy_index=arrays.policy_index,
            steps=tuple(steps),
        )


TOKENS = st.lists(st.integers(6, 250), min_size=1, max_size=6)
MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["tool", "user"]), st.text(max_size=8)), max_size=2
)
ASKED = st.tuples(TOKENS, st.floats(0, 1), MESSAGES, st.floats(0, 1), st.text(max_size=5))


@given(st.lists(ASKED, min_size=1, max_size=8))
def test_every_sampled_token_is_in_the_loss_once_after_what_its_policy_read(
    template: ChatTemplate, asked: list[Any]
) -> None:
    played = Played(template)
    for number, (tokens, follows, messages, past, text) in enumerate(asked, 1):
        played.sample(tokens)
        repeated = round(past * number)  # 0: a text of the program's own
        said = Message("assistant", text, turn=repeated)
        told = (*messages, said, MORE) if messages else (MORE,)
        begins = round(follows * number)
        whole = told if begins else (*FIRST, *told)
        played.branches.observe(Outcome(whole, follows=begins), TOOLS)
    played.sample([7])
    body = played.body()
    check(body)
    tokens, mask = body.tokens().tolist(), body.mask()
    spans = [(tokens[s.context : s.start], tokens[s.start : s.end]) for s in body.steps]
    assert sorted(spans) == sorted(zip(played.read, played.wrote, strict=True))
    assert mask.sum() == sum(map(len, played.wrote))
    assert all(mask[step.start : step.end].all() for step in body.steps)
    assert sum(body.branch_lengths()) == len(body)
    for step, parent in zip(body.steps, body.parents(), strict=True):
        if parent is not None:
            before = body.steps[parent]
            shared = tokens[before.context : before.end]
            assert tokens[step.context : step.start][: len(shared)] == shared


def test_a_turn_that_rewritten_history_repeats_keeps_its_tokens(template: ChatTemplate) -> None:
    played = Played(template)
    played.sample([40, 41, template.end_id])
    repeated = Message("assistant", "whatever it decodes to", turn=1)
    whole = (Message("user", "so far"), repeated, MORE)
    played.branches.observe(Outcome(whole, follows=0), TOOLS)
    opening = template.encode(template.render(whole[:1], TOOLS, generate=True))
    tail = template.encode(template.tail([MORE], TOOLS))
    expected = [*opening, 40, 41, *tail]
    assert played.branches.current.prompt() == expected


def test_a_turn_of_nobody_s_is_written_in_the_model_s_style(template: ChatTemplate) -> None:
    played = Played(template)
    played.sample([40])
    said = Message("assistant", "I look", calls=(ToolCall("look", {"thing": "mug"}),))
    whole = (*FIRST, said, Message("tool", "blue", "look"))
    played.branches.observe(Outcome(whole, follows=0), TOOLS)
    played.sample([41])
    body = played.body()
    check(body)
    (_, step) = body.steps
    assert 'I look\nlook{"thing":"mug"}' in template.decode(
        body.tokens()[step.context : step.start]
    )
    assert body.mask()[step.context : step.start].sum() == 0


def test_an_unanswered_branch_at_the_end_is_left_out(template: ChatTemplate) -> None:
    played = Played(template)
    played.sample([40])
    played.branches.observe(Outcome(FIRST, follows=0), TOOLS)
    assert played.body().branch_lengths() == [len(played.read[0]) + 1]


def test_an_answer_to_a_turn_that_never_was_is_a_failure(template: ChatTemplate) -> None:
    played = Played(template)
    played.sample([40])
    with pytest.raises(EnvironmentFailure, match="follows turn 2, which is unknown"):
        played.branches.observe(Outcome(FIRST, follows=2), TOOLS)


def test_the_history_of_a_branch_is_its_own(template: ChatTemplate) -> None:
    """For a policy that reads messages."""
    played = Played(template)
    played.sample([40])
    played.branches.observe(Outcome((Message("user", "one"),), follows=1), TOOLS)
    played.sample([41])
    played.branches.observe(Outcome((Message("user", "two"),), follows=1), TOOLS)
    said = [template.decode([40]), "two"]
    assert [each.content for each in played.branches.current.history()] == [FIRST[0].content, *said]


def _forked(template: ChatTemplate) -> Trajectory:
    played = Played(template)
    played.sample([40])
    played.branches.observe(Outcome((Message("user", "one"),), follows=1), TOOLS)
    played.sample([41])
    played.branches.observe(Outcome((Message("user", "two"),), follows=1), TOOLS)
    played.sample([42])
    return played.body()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"forked_from": 2}, "step 2 forks from step 2"),
        ({"forked_from": 1}, "step 2 does not continue step 1"),
        ({"begin": 0}, "step 2 forks within its branch"),
        ({"begin": 3}, "the branch of step 2 begins at 3"),
    ],
)
def test_a_body_whose_branches_are_not_what_was_sampled_is_refused(
    template: ChatTemplate, change: dict[str, Any], why: str
) -> None:
    body = _forked(template)
    assert body.parents() == [None, 0, 0]
    *before, last = body.steps
    assert last.branch is not None
    changed = msgspec.structs.replace(last.branch, **change)
    steps = (*before, msgspec.structs.replace(last, branch=changed))
    with pytest.raises(MessageError, match=why):
        check(msgspec.structs.replace(body, steps=steps))


@pytest.mark.parametrize("ends", [(1, 1), (3,), (-1,)])
def test_a_reward_of_a_branch_that_is_none_is_refused(
    template: ChatTemplate, ends: tuple[int, ...]
) -> None:
    rewards = tuple(BranchReward(step=end, reward=1.0) for end in ends)
    with pytest.raises(MessageError, match="branches with rewards end with steps"):
        check(msgspec.structs.replace(_forked(template), branch_rewards=rewards))


def test_a_reward_of_a_turn_that_never_was_is_a_failure(template: ChatTemplate) -> None:
    played = Played(template)
    played.sample([40])
    played.branches.require_turns([1])
    with pytest.raises(EnvironmentFailure, match="ends with turn 2, unknown"):
        played.branches.require_turns([1, 2])


def test_a_branch_repeats_what_it_shares_outside_the_loss(template: ChatTemplate) -> None:
    body = _forked(template)
    (first, second, third) = body.steps
    assert third.forked_from == 0
    shared = body.tokens()[: first.end].tolist()
    assert body.tokens()[third.context : third.context + first.end].tolist() == shared
    assert np.flatnonzero(body.mask()).tolist() == [first.start, second.start, third.start]


def test_the_reward_of_the_end_is_that_of_the_last_turn_in_time(template: ChatTemplate) -> None:
    body = _forked(template)
    times = zip(body.steps, (1.0, 3.0, 2.0), strict=True)
    steps = tuple(msgspec.structs.replace(step, requested_at=at) for step, at in times)
    assert msgspec.structs.replace(body, steps=steps).step_rewards() == [0.0, 1.0, 0.0]
