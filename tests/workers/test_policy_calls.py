"""Policies that refuse, die, freeze or are away while an episode needs a completion."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pytest
from policy_servers import FixedPool, ScriptedEnvironment, serve, won
from scripted_episodes import NOWHERE, run_episode

from agentrl.core.errors import PolicyError
from agentrl.core.types import Status
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.attempt_errors import EpisodeStopped, OutOfTime
from agentrl.workers.episode_context import EpisodeContext, EpisodeLimits
from agentrl.workers.policies.client import Ask, CheckpointNotServed, Completion, PolicyClient
from agentrl.workers.policies.pool import NoLivePolicy


def test_a_policy_that_is_refused_is_replaced_at_that_step(
    pool: FixedPool, context: EpisodeContext
) -> None:
    current = pool.policies[1]
    gone = LivePolicy("s", current.url, "lagged(4)", "gone", 0)
    trajectory = run_episode(
        ScriptedEnvironment(["and?"] * 6, won()), FixedPool(gone, current), context
    )
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
    trajectory = run_episode(
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
        run_episode(
            ScriptedEnvironment(["and?"], won()), pool, replace(context, client=client), limits
        )
        assert set(client.timeouts) == {900.0}
        client.timeouts.clear()
        run_episode(
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
            run_episode(ScriptedEnvironment([], won()), pool, context, limits)


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
            run_episode(ScriptedEnvironment(["and?"] * 3, won()), empty, context, limits)


def test_a_live_server_that_refuses_every_request_costs_an_attempt(
    pool: FixedPool, context: EpisodeContext
) -> None:
    """Its wait is bounded, and an episode that its server dies of is not played for ever."""
    current = pool.policies[1]
    gone = LivePolicy("s", current.url, "current", "gone", 0)
    limits = EpisodeLimits(max_turns=4, deadline_s=30.0, policy_wait_s=0.2)
    with pytest.raises(PolicyError, match="does not serve gone") as refused:
        run_episode(ScriptedEnvironment([], won()), FixedPool(gone), context, limits)
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
    trajectory = run_episode(ScriptedEnvironment(["and?"] * 2, won()), away, patient, PATIENT)
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
            trajectory = run_episode(
                ScriptedEnvironment(["and?"] * 2, won()), away, patient, PATIENT
            )
            assert (trajectory.status, trajectory.turns) == (Status.COMPLETED, 3)
        else:
            with pytest.raises(OutOfTime):
                run_episode(ScriptedEnvironment(["and?"] * 2, won()), away, patient, PATIENT)


def test_a_worker_that_stops_gives_the_episode_up(pool: FixedPool, context: EpisodeContext) -> None:
    context.stop.set()
    with pytest.raises(EpisodeStopped):
        run_episode(ScriptedEnvironment([], won()), pool, context)


def test_an_attempt_past_its_deadline_is_no_result(
    pool: FixedPool, context: EpisodeContext
) -> None:
    with pytest.raises(OutOfTime):
        run_episode(
            ScriptedEnvironment(["and?"] * 9, won()), pool, context, EpisodeLimits(8, -1.0, 5.0)
        )
