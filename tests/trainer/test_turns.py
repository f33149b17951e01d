from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from agentrl.core.config.sections.training import Trainer
from agentrl.core.trajectory import BranchPoint, BranchReward, Trajectory
from agentrl.core.trajectory_body import check
from agentrl.core.types import ABORT, Status
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import TrainableGroup, assemble_batch, has_spread
from agentrl.trainer.turns import read_turns, shaped_reward, token_advantages

MakeTrajectory = Callable[..., Trajectory]
PLAIN = resolve_settings(Trainer())


def with_rewards(body: Trajectory, *rewards: float, aborted: int | None = None) -> Trajectory:
    """Give the steps rewards; step `aborted` breaks off."""
    steps = [
        msgspec.structs.replace(step, reward=reward)
        for step, reward in zip(body.steps, rewards, strict=True)
    ]
    if aborted is not None:
        steps[aborted] = msgspec.structs.replace(steps[aborted], finish_reason=ABORT)
    changed = msgspec.structs.replace(body, steps=tuple(steps))
    check(changed)
    return changed


def test_the_last_turn_has_what_the_others_leave_of_the_reward(
    make_trajectory: MakeTrajectory,
) -> None:
    body = make_trajectory([(2, 4), (5, 6), (7, 9)], 10, reward=1.0, tokens=range(10))
    assert read_turns(body, PLAIN).rewards.tolist() == [0.0, 0.0, 1.0]
    turns = read_turns(with_rewards(body, 0.25, -0.5, 0.0), PLAIN)
    assert (turns.reward, turns.rewards.tolist()) == (1.0, [0.25, -0.5, 1.25])


def test_the_state_of_a_turn_is_what_was_read_since_the_last_one(
    make_trajectory: MakeTrajectory,
) -> None:
    body = make_trajectory([(2, 4), (5, 6), (6, 9)], 10, tokens=range(10))
    states = [np.frombuffer(each, "<i4").tolist() for each in read_turns(body, PLAIN).states]
    assert states == [[0, 1], [4], []]


def test_a_turn_whose_policy_broke_off_is_one_turn(make_trajectory: MakeTrajectory) -> None:
    body = make_trajectory([(2, 4), (4, 5), (7, 9)], 10, reward=1.0, tokens=range(10))
    costly = resolve_settings(Trainer(turn_penalty=0.1, token_penalty=0.01))
    turns = read_turns(with_rewards(body, 0.0, 0.5, 0.0, aborted=0), costly)
    assert turns.rewards == pytest.approx([0.5 - 0.13, 0.5 - 0.12])
    assert turns.reward == pytest.approx(turns.rewards.sum())
    assert len(turns.states) == 2


def test_an_abnormal_end_changes_the_reward_of_the_last_turn(
    make_trajectory: MakeTrajectory,
) -> None:
    body = make_trajectory([(2, 4), (5, 6)], 7, reward=0.75, status=Status.TASK_LIMIT)
    paid = with_rewards(body, 0.5, 0.25)
    punishing = resolve_settings(Trainer(abnormal_reward=-0.25))
    assert read_turns(paid, punishing).rewards.tolist() == [0.5, -0.25]
    assert shaped_reward(paid, -0.25) == 0.25
    assert shaped_reward(body, -0.25) == -0.25


def test_tokens_have_the_advantage_of_the_turn_that_they_lead_to(
    make_trajectory: MakeTrajectory,
) -> None:
    members = (
        make_trajectory([(2, 4), (5, 6)], 7, reward=1.0, tokens=[1, 1, 2, 2, 3, 2, 0]),
        make_trajectory([(2, 4)], 4, reward=0.0, tokens=[1, 1, 2, 2]),
    )
    settings = resolve_settings(Trainer(credit="gigpo", credit_options={"discount": 0.5}))
    first, second = token_advantages(members, settings)
    # ±0.5 by episode; the first prompt is a state of both: returns 0.5 and 0, mean 0.25
    assert first.tolist() == [0.75] * 4 + [0.5] * 3
    assert second.tolist() == [-0.75] * 4


def forked(make_trajectory: MakeTrajectory, *rewards: float) -> Trajectory:
    """Two branches after step 0, that end with steps 1 and 2 and have these rewards."""
    tokens = [1, 1, 2, 2, 3, 4, 1, 1, 2, 2, 5, 6]
    body = make_trajectory([(2, 4), (5, 6), (11, 12)], 12, reward=0.5, tokens=tokens)
    *steps, last = body.steps
    branched = msgspec.structs.replace(last, branch=BranchPoint(begin=6, forked_from=0))
    rewarded = (BranchReward(step=n, reward=reward) for n, reward in enumerate(rewards, 1))
    found = msgspec.structs.replace(
        body, steps=(*steps, branched), branch_rewards=tuple(rewarded) or msgspec.UNSET
    )
    check(found)
    return found


@pytest.mark.parametrize("credit", ["outcome", "discounted", "turn", "gigpo"])
def test_branches_with_rewards_of_their_own_are_compared_as_members(
    make_trajectory: MakeTrajectory, credit: str
) -> None:
    members = forked(make_trajectory, 1.0, 0.0), make_trajectory([(2, 4)], 4, reward=0.5)
    first, second = token_advantages(members, resolve_settings(Trainer(credit=credit)))
    # 1, 0 and 0.5 around their mean; step 0 leads to both branches
    assert first.tolist() == [0.0] * 4 + [0.5] * 2 + [-0.5] * 6
    assert second.tolist() == [0.0] * 4


def test_a_step_that_leads_to_no_branch_with_a_reward_has_the_mean_of_those(
    make_trajectory: MakeTrajectory,
) -> None:
    members = forked(make_trajectory, 1.0), make_trajectory([(2, 4)], 4, reward=0.0)
    first, second = token_advantages(members, PLAIN)
    assert first.tolist() == [0.5] * 12
    assert second.tolist() == [-0.5] * 4


def test_branches_without_rewards_share_that_of_the_episode(
    make_trajectory: MakeTrajectory,
) -> None:
    members = forked(make_trajectory), make_trajectory([(2, 4)], 4, reward=0.0)
    first, second = token_advantages(members, PLAIN)
    assert (first.tolist(), second.tolist()) == ([0.25] * 12, [-0.25] * 4)


def test_branches_keep_their_own_advantages_when_environments_are_normalised(
    make_trajectory: MakeTrajectory,
) -> None:
    members = forked(make_trajectory, 1.0, 0.0), make_trajectory([(2, 4)], 4, reward=0.5)
    settings = resolve_settings(Trainer(normalise="environment"))
    batch = assemble_batch([TrainableGroup("g", "db", members)], settings)
    # Of the first trajectory two tokens in four have 0, one 0.5 and one −0.5: σ² is half of 1/8.
    assert batch.advantages[[2, 5, 11, 14]] == pytest.approx(np.array([0, 2, -2, 0]))


def test_branches_that_differ_are_spread(make_trajectory: MakeTrajectory) -> None:
    alike = TrainableGroup("g", "db", (forked(make_trajectory, 0.5, 0.5),) * 2)
    apart = TrainableGroup("g", "db", (forked(make_trajectory, 1.0, 0.0),) * 2)
    assert (has_spread(alike), has_spread(apart)) == (False, True)


def test_without_steps_an_episode_is_one_turn(make_trajectory: MakeTrajectory) -> None:
    members = (make_trajectory([], 3, reward=1.0), make_trajectory([], 0, policies=()))
    for credit in ("outcome", "discounted", "turn", "gigpo"):
        first, second = token_advantages(members, resolve_settings(Trainer(credit=credit)))
        assert (first.tolist(), second.tolist()) == ([0.5] * 3, [])
