"""The episode against the scripted engine behind real HTTP."""

import random
import threading
import time
from collections.abc import Iterator, Sequence
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
from policy_servers import CLAIMED, FixedPool, ScriptedEnvironment, serve, won

from agentrl.core.config.sections import Sampling
from agentrl.core.errors import ConfigError, EnvironmentFailure, PolicyError
from agentrl.core.journal import SampledStep, decode_record, encode_record
from agentrl.core.trajectory import Trajectory, check
from agentrl.core.types import Status
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.envs.contract import Outcome, ToolCall
from agentrl.serving.engine_api import ModelLimits as EngineLimits
from agentrl.serving.engine_api import Request
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.episode import (
    EpisodeContext,
    EpisodeLimits,
    EpisodeLoop,
    EpisodeStopped,
    OutOfTime,
    StepJournal,
)
from agentrl.workers.policies.client import Ask, CheckpointNotServed, Completion, PolicyClient
from agentrl.workers.policies.pool import NoLivePolicy, Sampler

NOWHERE = Path()
LIMITS = EpisodeLimits(max_turns=8, deadline_s=30.0, policy_wait_s=5.0)
VOCABULARY = 300


class Recorded:
    """A script that keeps what it was asked and what it answered."""

    def __init__(self) -> None:
        self.turns: list[tuple[list[int], list[int]]] = []

    def __call__(self, request: Request) -> Sequence[int]:
        source = random.Random(request.seed)
        tokens = [source.randrange(6, VOCABULARY) for _ in range(source.randint(1, 9))]
        tokens += sorted(request.stop_ids)[:1] if source.random() < 0.8 else tokens * 8
        self.turns.append((request.prompt, tokens[: request.max_tokens]))
        return tokens


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


@pytest.fixture(scope="module")
def script() -> Recorded:
    return Recorded()


@pytest.fixture(scope="module")
def pool(script: Recorded) -> Iterator[FixedPool]:
    """Two tracks on one server."""
    engine = ScriptedEngine(script, limits=EngineLimits(VOCABULARY, 4096))
    tracks = {"c0": ("lagged(4)", NOWHERE), "c1": ("current", NOWHERE)}
    with serve(engine, tracks) as server:
        yield FixedPool(
            LivePolicy("s", server.url, "lagged(4)", "c0", 0),
            LivePolicy("s", server.url, "current", "c1", 1),
        )


@pytest.fixture
def context(template: ChatTemplate) -> Iterator[EpisodeContext]:
    with closing(PolicyClient()) as client:
        yield EpisodeContext(
            template=template,
            style="plain",
            stop_ids=sorted(template.stop_ids),
            sampling=Sampling(strategy="uniform", max_step_tokens=24, max_tokens=400),
            client=client,
            clock=time.time,
            stop=threading.Event(),
        )


def _run(
    env: ScriptedEnvironment,
    pool: FixedPool,
    context: EpisodeContext,
    limits: EpisodeLimits = LIMITS,
    *,
    seed: str = "seed",
    journal: StepJournal | None = None,
) -> Trajectory:
    loop = EpisodeLoop(CLAIMED, "run", env, Sampler(pool, context.sampling, seed), context)
    trajectory = loop.run(limits, journal)
    check(trajectory)
    return trajectory


def _with(context: EpisodeContext, **sampling: Any) -> EpisodeContext:
    return replace(context, sampling=msgspec.structs.replace(context.sampling, **sampling))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(answers=st.lists(st.text(max_size=30), max_size=7), seed=st.integers(0, 10**6))
def test_a_trajectory_is_what_was_sent_and_sampled(
    answers: list[str], seed: int, pool: FixedPool, context: EpisodeContext, script: Recorded
) -> None:
    script.turns.clear()
    trajectory = _run(ScriptedEnvironment(answers, won()), pool, context, seed=str(seed))
    tokens, mask = trajectory.tokens().tolist(), trajectory.mask()
    assert len(trajectory.steps) == len(script.turns)
    for step, (prompt, sampled) in zip(trajectory.steps, script.turns, strict=True):
        assert step.prompt_tokens == step.start == len(prompt)
        assert tokens[: step.start] == prompt
        assert tokens[step.start : step.end] == sampled
    assert mask.sum() == sum(len(sampled) for _, sampled in script.turns)
    expected = np.where(mask == 1, -np.log(VOCABULARY), 0.0)
    assert np.allclose(trajectory.behaviour(), expected, atol=1e-6)
    used = {(policy.checkpoint_id, policy.version) for policy in trajectory.policies}
    assert used <= {("c0", 0), ("c1", 1)}


class Kept:
    """A journal in memory. `recorded`: what a former attempt kept."""

    def __init__(self, recorded: Sequence[SampledStep] = ()) -> None:
        self.steps = list(recorded)
        self.remaining = len(self.steps)

    def next_recorded(self) -> SampledStep | None:
        if not self.remaining:
            return None
        self.remaining -= 1
        return self.steps[len(self.steps) - self.remaining - 1]

    def append(self, step: SampledStep) -> None:
        self.steps.append(decode_record(encode_record(step)))


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
        own, whole = replace(context, client=client), Kept()
        first = _run(ScriptedEnvironment(answers, won()), pool, own, seed=str(seed), journal=whole)
        cut = min(cut, len(whole.steps))
        asked = len(client.asked)
        again = Kept(whole.steps[:cut])
        second = _run(
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
    trajectory = _run(ScriptedEnvironment(["and?"] * 7, won(0.5)), pool, context)
    assert {policy.track for policy in trajectory.policies} == {"current", "lagged(4)"}
    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, 0.5)
    assert trajectory.started_at <= trajectory.steps[0].requested_at <= trajectory.finished_at


def test_the_same_attempt_is_sampled_the_same(pool: FixedPool, context: EpisodeContext) -> None:
    first, again = (_run(ScriptedEnvironment(["and?"] * 5, won()), pool, context) for _ in range(2))
    assert first.token_ids == again.token_ids
    assert first.policy_index == again.policy_index


def test_rewards_of_turns_add_up_to_the_episodes(pool: FixedPool, context: EpisodeContext) -> None:
    whole = _run(ScriptedEnvironment(["and?"] * 2, won(), reward=0.25), pool, context)
    assert (whole.reward, whole.step_rewards()) == (1.5, [0.25, 0.25, 1.0])
    cut = _run(ScriptedEnvironment(["and?"] * 20, won(), reward=0.25), pool, context)
    assert (cut.status, cut.step_rewards()) == (Status.TASK_LIMIT, [0.25] * LIMITS.max_turns)
    broken = ScriptedEnvironment(["and?"], won(), reward=float("nan"))
    with pytest.raises(EnvironmentFailure, match="the environment's reward is nan"):
        _run(broken, pool, context)


def test_turns_that_run_out_are_a_task_limit(pool: FixedPool, context: EpisodeContext) -> None:
    trajectory = _run(ScriptedEnvironment(["and?"] * 20, won()), pool, context)
    assert (trajectory.status, trajectory.reward) == (Status.TASK_LIMIT, 0.0)
    assert len(trajectory.steps) == LIMITS.max_turns


def test_tokens_that_run_out_are_a_task_limit(pool: FixedPool, context: EpisodeContext) -> None:
    trajectory = _run(
        ScriptedEnvironment(["and?"] * 20, won()), pool, _with(context, max_tokens=90)
    )
    assert trajectory.status == Status.TASK_LIMIT
    assert trajectory.steps[-1].end <= 90


def test_a_first_prompt_without_room_for_a_step_is_an_error_that_names_the_bound(
    pool: FixedPool, context: EpisodeContext
) -> None:
    with pytest.raises(ConfigError, match=r"sampling.max_tokens: .* item"):
        _run(ScriptedEnvironment([], won()), pool, _with(context, max_tokens=3))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(tokens=st.integers(1, 12), turns=st.integers(0, 5), seed=st.integers(0, 10**6))
def test_a_turn_whose_policy_breaks_off_is_finished_by_others(
    tokens: int, turns: int, seed: int, pool: FixedPool, context: EpisodeContext
) -> None:
    with closing(BreaksOff(tokens)) as client:
        trajectory = _run(
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
        trajectory = _run(Hears([], won()), only, replace(context, client=client))
    assert heard == [[ToolCall("look", {"thing": "mug"})]]
    assert len(trajectory.steps) == -(-len(said) // 2)
    assert trajectory.turns == 1


def test_the_tokens_of_a_teacher_are_kept_and_masked(
    pool: FixedPool, context: EpisodeContext
) -> None:
    with closing(Teaches()) as client:
        trajectory = _run(
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


def test_a_policy_that_is_refused_is_replaced_at_that_step(
    pool: FixedPool, context: EpisodeContext
) -> None:
    current = pool.policies[1]
    gone = LivePolicy("s", current.url, "lagged(4)", "gone", 0)
    trajectory = _run(ScriptedEnvironment(["and?"] * 6, won()), FixedPool(gone, current), context)
    assert [policy.checkpoint_id for policy in trajectory.policies] == ["c1"]
    assert len(trajectory.steps) == 7
    redrawn = sum(step.redrawn for step in trajectory.steps)
    assert redrawn > 0
    assert trajectory.metrics["redrawn"] == redrawn


def test_a_server_that_died_is_replaced_at_that_step(
    pool: FixedPool, context: EpisodeContext
) -> None:
    with serve(ScriptedEngine(), {"c9": ("current", NOWHERE)}) as server:
        dead = LivePolicy("dead", server.url, "current", "c9", 9)
    trajectory = _run(
        ScriptedEnvironment(["and?"] * 6, won()), FixedPool(dead, *pool.policies), context
    )
    assert "dead" not in {policy.server_id for policy in trajectory.policies}


class Timed(PolicyClient):
    """Notes how long each completion may take."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float] = []

    def complete(self, policy: LivePolicy, ask: Ask, *, timeout_s: float) -> Completion:
        self.timeouts.append(timeout_s)
        return super().complete(policy, ask, timeout_s=timeout_s)


def test_a_completion_may_take_longer_than_the_wait_for_a_policy(
    pool: FixedPool, context: EpisodeContext
) -> None:
    limits = EpisodeLimits(
        max_turns=2, deadline_s=86_400.0, policy_wait_s=5.0, completion_timeout_s=900.0
    )
    with closing(Timed()) as client:
        _run(ScriptedEnvironment(["and?"], won()), pool, replace(context, client=client), limits)
        assert set(client.timeouts) == {900.0}
        client.timeouts.clear()
        _run(
            ScriptedEnvironment(["and?"], won()),
            pool,
            replace(context, client=client),
            replace(limits, deadline_s=800.0),
        )
        assert 0 < max(client.timeouts) <= 800.0  # the attempt's own end


def test_without_a_server_the_attempt_fails_once_a_steps_wait_is_over(
    context: EpisodeContext,
) -> None:
    dead = LivePolicy("dead", "http://127.0.0.1:9", "current", "c", 0)
    limits = EpisodeLimits(max_turns=2, deadline_s=86_400.0, policy_wait_s=0.5)
    for pool in (FixedPool(dead), FixedPool()):
        with pytest.raises(PolicyError):
            _run(ScriptedEnvironment([], won()), pool, context, limits)


class Dwindles(FixedPool):
    """A pool that is empty after so many looks."""

    looks = 1

    def live(self) -> Sequence[LivePolicy]:
        self.looks -= 1
        return self.policies if self.looks >= 0 else ()


def test_an_episode_without_a_live_policy_is_given_back_whatever_it_has_played(
    pool: FixedPool, context: EpisodeContext
) -> None:
    limits = EpisodeLimits(max_turns=4, deadline_s=30.0, policy_wait_s=0.2)
    for empty in (Dwindles(*pool.policies), FixedPool()):
        with pytest.raises(NoLivePolicy):
            _run(ScriptedEnvironment(["and?"] * 3, won()), empty, context, limits)


def test_a_live_server_that_refuses_every_request_costs_an_attempt(
    pool: FixedPool, context: EpisodeContext
) -> None:
    """Its wait is bounded, and an episode that its server dies of is not played for ever."""
    current = pool.policies[1]
    gone = LivePolicy("s", current.url, "current", "gone", 0)
    limits = EpisodeLimits(max_turns=4, deadline_s=30.0, policy_wait_s=0.2)
    with pytest.raises(PolicyError, match="does not serve gone") as refused:
        _run(ScriptedEnvironment([], won()), FixedPool(gone), context, limits)
    assert not isinstance(refused.value, NoLivePolicy)


class AwayForHours(FixedPool):
    """At the look `at` nothing is live, and hours have passed at the next one."""

    def __init__(self, *policies: LivePolicy, at: int) -> None:
        super().__init__(*policies)
        self.now, self.at, self.looks = 0.0, at, 0  # seconds, number of a look, looks

    def live(self) -> Sequence[LivePolicy]:
        self.looks += 1
        self.now += HOURS_S if self.looks == self.at + 1 else 0.0
        return () if self.looks == self.at else self.policies


HOURS_S = 1e5
PATIENT = EpisodeLimits(
    max_turns=4, deadline_s=100.0, policy_wait_s=1e6, completion_timeout_s=HOURS_S
)


def test_a_policy_that_is_away_for_longer_than_the_deadline_costs_no_attempt(
    pool: FixedPool, context: EpisodeContext
) -> None:
    away = AwayForHours(*pool.policies, at=2)
    patient = replace(context, monotonic=lambda: away.now)
    trajectory = _run(ScriptedEnvironment(["and?"] * 2, won()), away, patient, PATIENT)
    assert (trajectory.status, trajectory.turns) == (Status.COMPLETED, 3)
    assert away.now == HOURS_S


class Freezes(PolicyClient):
    """The second completion does not come in time; the server's lease may end meanwhile."""

    def __init__(self, pool: AwayForHours, *, loses_lease: bool) -> None:
        super().__init__()
        self._pool, self._loses_lease, self._asked = pool, loses_lease, 0

    def complete(self, policy: LivePolicy, ask: Ask, *, timeout_s: float) -> Completion:
        self._asked += 1
        if self._asked != 2:
            return super().complete(policy, ask, timeout_s=timeout_s)
        self._pool.now += timeout_s + 1.0
        if self._loses_lease:
            self._pool.at = self._pool.looks + 1
        raise CheckpointNotServed("it did not answer in time")


@pytest.mark.parametrize("loses_lease", [True, False])
def test_a_server_that_freezes_costs_no_attempt_and_a_live_one_that_hangs_does(
    pool: FixedPool, context: EpisodeContext, loses_lease: bool
) -> None:
    away = AwayForHours(*pool.policies, at=-1)
    with closing(Freezes(away, loses_lease=loses_lease)) as client:
        patient = replace(context, client=client, monotonic=lambda: away.now)
        if loses_lease:
            trajectory = _run(ScriptedEnvironment(["and?"] * 2, won()), away, patient, PATIENT)
            assert (trajectory.status, trajectory.turns) == (Status.COMPLETED, 3)
        else:
            with pytest.raises(OutOfTime):
                _run(ScriptedEnvironment(["and?"] * 2, won()), away, patient, PATIENT)


def test_an_environment_that_breaks_gives_no_trajectory(
    pool: FixedPool, context: EpisodeContext
) -> None:
    with pytest.raises(EnvironmentFailure, match="broke"):
        _run(ScriptedEnvironment(["and?"], EnvironmentFailure("broke")), pool, context)
    for status in (Status.ENV_ERROR, Status.TIMEOUT, Status.CANCELLED):
        ended = Outcome((), done=True, status=status, reward=0.0)
        with pytest.raises(EnvironmentFailure, match=status):
            _run(ScriptedEnvironment(["and?"], ended), pool, context)


def test_a_worker_that_stops_gives_the_episode_up(pool: FixedPool, context: EpisodeContext) -> None:
    context.stop.set()
    with pytest.raises(EpisodeStopped):
        _run(ScriptedEnvironment([], won()), pool, context)


def test_an_attempt_past_its_deadline_is_no_result(
    pool: FixedPool, context: EpisodeContext
) -> None:
    with pytest.raises(OutOfTime):
        _run(ScriptedEnvironment(["and?"] * 9, won()), pool, context, EpisodeLimits(8, -1.0, 5.0))
