"""The episode against the scripted engine behind real HTTP."""

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_servers import FixedPool, ScriptedEnvironment, serve, won
from scripted_episodes import (
    LIMITS,
    NOWHERE,
    VOCABULARY,
    MemoryJournal,
    RecordingScript,
    run_episode,
)

from agentrl.core.errors import ConfigError, EnvironmentFailure
from agentrl.core.trajectory import BranchReward
from agentrl.core.types import Status
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.envs.contract import Outcome, ToolCall
from agentrl.serving.engine_api import ModelLimits as EngineLimits
from agentrl.serving.engine_api import Request
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.episode_context import EpisodeContext
from agentrl.workers.policies.client import Ask, Completion, PolicyClient
from agentrl.workers.policies.pool import Sampler


class BreaksOff(PolicyClient):
    """A pool that swaps so often that every completion breaks off after `tokens` tokens."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.asked: list[tuple[int, int, bool]] = []  # prompt, most tokens, whether it broke off

    def complete(self, policy: LivePolicy, ask: Ask, *, timeout_s: float) -> Completion:
        whole = super().complete(policy, ask, timeout_s=timeout_s)
        cut = len(whole.token_ids) > self.tokens
        self.asked.append((len(ask.prompt), ask.max_tokens, cut))
        reason = "abort" if cut else whole.finish_reason
        kept = slice(self.tokens)
        return Completion(whole.token_ids[kept], whole.logprobs[kept], reason)


class Teaches(PolicyClient):
    """Lagged policies are a teacher's: their tokens come without log-probabilities."""

    def complete(self, policy: LivePolicy, ask: Ask, *, timeout_s: float) -> Completion:
        whole = super().complete(policy, ask, timeout_s=timeout_s)
        if policy.track == "current":
            return whole
        return Completion(whole.token_ids, [], whole.finish_reason, masked=True)


def _with(context: EpisodeContext, **sampling: Any) -> EpisodeContext:
    return replace(context, sampling=msgspec.structs.replace(context.sampling, **sampling))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(answers=st.lists(st.text(max_size=30), max_size=7), seed=st.integers(0, 10**6))
def test_a_trajectory_is_what_was_sent_and_sampled(
    answers: list[str],
    seed: int,
    pool: FixedPool,
    context: EpisodeContext,
    recording: RecordingScript,
) -> None:
    recording.turns.clear()
    trajectory = run_episode(ScriptedEnvironment(answers, won()), pool, context, seed=str(seed))
    tokens, mask = trajectory.tokens().tolist(), trajectory.mask()
    assert len(trajectory.steps) == len(recording.turns)
    for step, (prompt, sampled) in zip(trajectory.steps, recording.turns, strict=True):
        assert step.prompt_tokens == step.start == len(prompt)
        assert tokens[: step.start] == prompt
        assert tokens[step.start : step.end] == sampled
    assert mask.sum() == sum(len(sampled) for _, sampled in recording.turns)
    expected = np.where(mask == 1, -np.log(VOCABULARY), 0.0)
    assert np.allclose(trajectory.behaviour(), expected, atol=1e-6)
    used = {(policy.checkpoint_id, policy.version) for policy in trajectory.policies}
    assert used <= {("c0", 0), ("c1", 1)}


def test_rewards_of_branches_stand_at_the_last_steps_of_their_turns(
    pool: FixedPool, context: EpisodeContext
) -> None:
    end = replace(won(), branch_rewards={1: 0.5, 2: 1})
    with closing(BreaksOff(2)) as client:
        own = replace(context, client=client)
        body = run_episode(ScriptedEnvironment(["more"], end), pool, own, seed="1")
    ended = [n for n, step in enumerate(body.steps) if step.finish_reason != "abort"]
    assert ended != [0, 1]
    rewards = zip(ended, (0.5, 1.0), strict=True)
    assert body.branch_rewards == tuple(BranchReward(step=n, reward=r) for n, r in rewards)
    unknown = replace(won(), branch_rewards={3: 0.5})
    with pytest.raises(EnvironmentFailure, match="ends with turn 3, unknown"):
        run_episode(ScriptedEnvironment(["more"], unknown), pool, context, seed="1")


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    answers=st.lists(st.text(max_size=30), max_size=6),
    given_numbers=st.tuples(st.integers(1, 12), st.integers(0, 40), st.integers(0, 10**6)),
)
def test_an_episode_continues_after_any_step_that_was_kept(
    answers: list[str],
    given_numbers: tuple[int, int, int],
    pool: FixedPool,
    context: EpisodeContext,
) -> None:
    """What was kept stands in the trajectory as it was sampled; even a turn that had broken off."""
    tokens, cut, seed = given_numbers
    with closing(BreaksOff(tokens)) as client:
        own, whole = replace(context, client=client), MemoryJournal()
        first = run_episode(
            ScriptedEnvironment(answers, won()), pool, own, seed=str(seed), journal=whole
        )
        cut = min(cut, len(whole.steps))
        asked = len(client.asked)
        again = MemoryJournal(whole.steps[:cut])
        second = run_episode(
            ScriptedEnvironment(answers, won()), pool, own, seed=f"{seed} again", journal=again
        )
        assert len(client.asked) - asked == len(second.steps) - cut
    assert len(whole.steps) == len(first.steps)
    assert again.steps[:cut] == whole.steps[:cut]
    assert again.remaining == 0
    end = first.steps[cut - 1].end if cut else 0
    for array, width in (("token_ids", 4), ("logprobs", 4), ("loss_mask", 1)):
        assert getattr(first, array)[: end * width] == getattr(second, array)[: end * width]
    for before, after in zip(first.steps[:cut], second.steps, strict=False):
        assert first.policies[before.policy_index] == second.policies[after.policy_index]
        if after is not second.steps[-1]:
            assert (before.start, before.end, before.call, before.answer) == (
                after.start,
                after.end,
                after.call,
                after.answer,
            )


def test_policies_mix_within_one_trajectory(pool: FixedPool, context: EpisodeContext) -> None:
    trajectory = run_episode(ScriptedEnvironment(["and?"] * 7, won(0.5)), pool, context)
    assert {policy.track for policy in trajectory.policies} == {"current", "lagged(4)"}
    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, 0.5)
    assert trajectory.started_at <= trajectory.steps[0].requested_at <= trajectory.finished_at


def test_the_same_attempt_is_sampled_the_same(pool: FixedPool, context: EpisodeContext) -> None:
    first, again = (
        run_episode(ScriptedEnvironment(["and?"] * 5, won()), pool, context) for _ in range(2)
    )
    assert first.token_ids == again.token_ids
    assert first.policy_index == again.policy_index


def test_rewards_of_turns_add_up_to_the_episodes(pool: FixedPool, context: EpisodeContext) -> None:
    whole = run_episode(ScriptedEnvironment(["and?"] * 2, won(), reward=0.25), pool, context)
    assert (whole.reward, whole.step_rewards()) == (1.5, [0.25, 0.25, 1.0])
    cut = run_episode(ScriptedEnvironment(["and?"] * 20, won(), reward=0.25), pool, context)
    assert (cut.status, cut.step_rewards()) == (Status.TASK_LIMIT, [0.25] * LIMITS.max_turns)
    for reward, told in ((math.nan, "nan"), (1e300, r"1e\+300"), (True, "True of type bool")):
        broken = ScriptedEnvironment(["and?"], won(), reward=reward)
        with pytest.raises(EnvironmentFailure, match=f"the environment's reward is {told}"):
            run_episode(broken, pool, context)


def test_turns_that_run_out_are_a_task_limit(pool: FixedPool, context: EpisodeContext) -> None:
    trajectory = run_episode(ScriptedEnvironment(["and?"] * 20, won()), pool, context)
    assert (trajectory.status, trajectory.reward) == (Status.TASK_LIMIT, 0.0)
    assert len(trajectory.steps) == LIMITS.max_turns


def test_an_episode_whose_turns_run_out_has_the_metrics_of_its_last_turn(
    pool: FixedPool, context: EpisodeContext
) -> None:
    class Measured(ScriptedEnvironment):
        def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
            self.progress += 1
            return replace(super().call(calls), metrics={"progress": self.progress})

        progress: Any = 0

    trajectory = run_episode(Measured(["and?"] * 20, won()), pool, context)
    assert trajectory.metrics == {"progress": LIMITS.max_turns}
    broken = Measured(["and?"] * 20, won())
    broken.progress = float("nan")
    with pytest.raises(EnvironmentFailure, match=r"the environment's metrics\['progress'\] is nan"):
        run_episode(broken, pool, context)


def test_tokens_that_run_out_are_a_task_limit(pool: FixedPool, context: EpisodeContext) -> None:
    trajectory = run_episode(
        ScriptedEnvironment(["and?"] * 20, won()), pool, _with(context, max_tokens=90)
    )
    assert trajectory.status == Status.TASK_LIMIT
    assert trajectory.steps[-1].end <= 90


@pytest.mark.parametrize(("mugs", "turns", "fits"), [(1000, 1, False), (1, LIMITS.max_turns, True)])
def test_a_last_answer_that_exceeds_the_most_tokens_is_not_in_the_trajectory(
    pool: FixedPool, context: EpisodeContext, mugs: int, turns: int, fits: bool
) -> None:
    env = ScriptedEnvironment(["look at the mug " * mugs] * 20, won())
    trajectory = run_episode(env, pool, _with(context, max_tokens=1000))
    assert (trajectory.status, trajectory.turns) == (Status.TASK_LIMIT, turns)
    assert len(trajectory) <= 1000
    assert (len(trajectory) > trajectory.steps[-1].end) == fits
    assert trajectory.steps[-1].answer.startswith("look at the mug")


def test_a_first_prompt_without_room_for_a_step_is_an_error_that_names_the_bound(
    pool: FixedPool, context: EpisodeContext
) -> None:
    with pytest.raises(ConfigError, match=r"sampling.max_tokens: .* item"):
        run_episode(ScriptedEnvironment([], won()), pool, _with(context, max_tokens=3))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(tokens=st.integers(1, 12), turns=st.integers(0, 5), seed=st.integers(0, 10**6))
def test_a_turn_whose_policy_breaks_off_is_finished_by_others(
    tokens: int, turns: int, seed: int, pool: FixedPool, context: EpisodeContext
) -> None:
    with closing(BreaksOff(tokens)) as client:
        trajectory = run_episode(
            ScriptedEnvironment(["and?"] * turns, won()),
            pool,
            replace(context, client=client),
            seed=str(seed),
        )
    steps = trajectory.steps
    assert trajectory.turns == turns + 1
    assert len(steps) == len(client.asked)
    bound, mask, said = context.sampling.max_step_tokens, trajectory.mask(), 0
    for step, (prompt, most, _) in zip(steps, client.asked, strict=True):
        assert step.start == step.prompt_tokens == prompt
        assert most == bound - said
        assert mask[step.start : step.end].all()
        if step.finish_reason == "abort":
            assert (step.call, step.answer, step.env_s) == ("", "", 0.0)
            said += step.end - step.start
        else:
            said = 0
        assert said < bound
    for step, after in pairwise(steps):
        assert (after.start == step.end) == (step.finish_reason == "abort")
    assert steps[-1].finish_reason != "abort"


def test_the_call_of_a_turn_is_read_from_all_its_spans(
    template: ChatTemplate, context: EpisodeContext, model_dir: Path
) -> None:
    """The scripted answer, one call, arrives in pieces of two tokens."""
    call = 'look{"thing":"mug"}'
    said = [*template.encode(call), *context.stop_ids[:1]]

    def spell(request: Request) -> Sequence[int]:
        done = next(n for n in range(len(said), -1, -1) if request.prompt[-n:] == said[:n] or not n)
        return said[done:]

    engine = ScriptedEngine(spell, limits=EngineLimits(template.vocab_size, 4096))
    heard: list[Any] = []

    class Hears(ScriptedEnvironment):
        def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
            heard.append(calls)
            return super().call(calls)

    with (
        serve(engine, {"c": ("current", NOWHERE)}) as server,
        closing(BreaksOff(2)) as client,
    ):
        only = FixedPool(LivePolicy("s", server.url, "current", "c", 0))
        trajectory = run_episode(Hears([], won()), only, replace(context, client=client))
    assert heard == [[ToolCall("look", {"thing": "mug"})]]
    assert len(trajectory.steps) == -(-len(said) // 2)
    assert trajectory.turns == 1


def test_the_tokens_of_a_teacher_are_kept_and_masked(
    pool: FixedPool, context: EpisodeContext
) -> None:
    with closing(Teaches()) as client:
        trajectory = run_episode(
            ScriptedEnvironment(["and?"] * 7, won()), pool, replace(context, client=client)
        )
    masked = [policy.track for policy in trajectory.policies if policy.masked]
    assert masked == ["lagged(4)"]
    for step in trajectory.steps:
        own = trajectory.policies[step.policy_index].track == "current"
        assert (trajectory.mask()[step.start : step.end] == own).all()
        assert step.end > step.start


def test_a_policy_that_reads_messages_never_goes_on_with_a_turn(
    pool: FixedPool, context: EpisodeContext
) -> None:
    current = pool.policies[1]
    reads = LivePolicy("t", current.url, "external(t)", "c0", -1, engine="external")
    sampler = Sampler(FixedPool(current, reads), context.sampling, "seed")
    drawn = {sampler.draw(wait_s=0, stop=context.stop, exact=True).track for _ in range(30)}
    assert drawn == {"current"}
    assert {sampler.draw(wait_s=0, stop=context.stop).track for _ in range(30)} > drawn


def test_an_environment_that_breaks_gives_no_trajectory(
    pool: FixedPool, context: EpisodeContext
) -> None:
    with pytest.raises(EnvironmentFailure, match="broke"):
        run_episode(ScriptedEnvironment(["and?"], EnvironmentFailure("broke")), pool, context)
    for status in (Status.ENV_ERROR, Status.TIMEOUT, Status.CANCELLED):
        ended = Outcome((), done=True, status=status, reward=0.0)
        with pytest.raises(EnvironmentFailure, match=status):
            run_episode(ScriptedEnvironment(["and?"], ended), pool, context)
