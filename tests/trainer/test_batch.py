from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from agentrl.core.config.sections.training import Trainer
from agentrl.core.errors import ConfigError
from agentrl.core.trajectory import PolicyRef, Trajectory
from agentrl.core.types import Status
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import (
    TakenGroups,
    TrainableGroup,
    assemble_batch,
    has_spread,
    split_by_variance,
    with_advantages,
)

MakeTrajectory = Callable[..., Trajectory]
PLAIN = resolve_settings(Trainer(normalise="none"))


def test_a_batch_lays_trajectories_end_to_end(make_trajectory: MakeTrajectory) -> None:
    members = (
        make_trajectory([(2, 4), (5, 6)], 7, reward=1.0, temperatures=(0.5, 0.0), seed=1),
        make_trajectory([(1, 2)], 3, reward=0.0, seed=2),
    )
    batch = assemble_batch([TrainableGroup("g", "db", members)], PLAIN)
    assert batch.lengths.tolist() == [7, 3]
    assert np.flatnonzero(batch.loss_mask).tolist() == [2, 3, 5, 8]
    assert batch.tokens.tolist() == [*members[0].tokens(), *members[1].tokens()]
    assert batch.temperature[:7].tolist() == [1, 1, 0.5, 0.5, 1, 1, 1]
    assert batch.fresh[:7].tolist() == [False, False, True, True, False, False, False]
    assert batch.advantages[:7].tolist() == [0.5] * 7
    assert batch.advantages[7:].tolist() == [-0.5] * 3
    assert batch.successes.tolist() == [True, False]


def test_tokens_of_an_untrainable_policy_are_masked(
    make_trajectory: MakeTrajectory, policies: dict[str, PolicyRef]
) -> None:
    trajectory = make_trajectory(
        [(2, 4), (5, 6)], 7, policies=(policies["external"], policies["current"])
    )
    batch = assemble_batch([TrainableGroup("g", "db", (trajectory,))], PLAIN)
    assert np.flatnonzero(batch.loss_mask).tolist() == [5]


def test_a_first_token_is_never_in_the_loss(make_trajectory: MakeTrajectory) -> None:
    batch = assemble_batch([TrainableGroup("g", "db", (make_trajectory([(0, 3)], 3),))], PLAIN)
    assert batch.loss_mask.tolist() == [False, True, True]


def test_each_member_is_told_what_its_loss_tokens_were_taught(
    make_trajectory: MakeTrajectory,
) -> None:
    def member(end: int, reward: float) -> Trajectory:
        return make_trajectory([(1, end)], end, reward=reward)

    groups = [
        TrainableGroup("g", "db", (member(2, 1.0), member(4, 0.0))),
        TrainableGroup("h", "kg", (member(3, 1.0), make_trajectory([], 4), member(3, 0.5))),
    ]
    (first, second) = with_advantages(groups, assemble_batch(groups, PLAIN))
    assert first.advantages == (0.5, -0.5)
    assert second.advantages == (0.5, None, 0.0)
    normalised = resolve_settings(Trainer(task_norm_min_tokens=1))
    (first, _) = with_advantages(groups, assemble_batch(groups, normalised))
    # tokens of db: 0.5 once, -0.5 thrice: mean -0.25, deviation sqrt(3)/4
    assert first.advantages == pytest.approx((3**0.5, -(3**-0.5)), abs=1e-6)


def test_a_trajectory_without_steps_or_tokens_is_harmless(make_trajectory: MakeTrajectory) -> None:
    empty = make_trajectory([], 0, policies=())
    batch = assemble_batch([TrainableGroup("g", "db", (empty, make_trajectory([], 4)))], PLAIN)
    assert batch.loss_mask.sum() == 0
    assert assemble_batch([], PLAIN).tokens.size == 0


def test_abnormal_ends_take_the_reward_of_the_preset(make_trajectory: MakeTrajectory) -> None:
    members = (
        make_trajectory(reward=0.0, status=Status.TASK_LIMIT),
        make_trajectory(reward=0.0),
        make_trajectory(reward=0.5, status=Status.INVALID_ACTION),
    )
    paper = resolve_settings(Trainer(preset="paper"))
    batch = assemble_batch([TrainableGroup("g", "db", members)], paper)
    assert batch.rewards.tolist() == pytest.approx([-0.2, 0.0, -0.2])


def test_spread_counts_the_reward_that_trains(make_trajectory: MakeTrajectory) -> None:
    ends = (Status.TASK_LIMIT, Status.COMPLETED)
    group = TrainableGroup("g", "db", tuple(make_trajectory(status=end) for end in ends))
    assert not has_spread(group)
    assert has_spread(group, -0.2)


@pytest.mark.parametrize(
    ("rewards", "differ"),
    [
        ((0.3, 0.1 + 0.2), False),
        ((-0.3, 0.3), True),
        ((1e6 + 0.3, 1e6 + 0.1 + 0.2), False),
        ((0.0, 1e-9), True),
        ((), False),
    ],
)
def test_a_rounding_error_is_no_spread(
    make_trajectory: MakeTrajectory, rewards: tuple[float, ...], differ: bool
) -> None:
    group = TrainableGroup("g", "db", tuple(make_trajectory(reward=each) for each in rewards))
    assert has_spread(group) is differ


def test_the_groups_with_the_most_varied_rewards_stay(make_trajectory: MakeTrajectory) -> None:
    rewards = {  # variance, for db: 3/16, 1/4, 1/8, 0; for kg: 0.0025
        "1": (1.0, 0.0, 0.0, 0.0),
        "2": (1.0, 1.0, 0.0, 0.0),
        "3": (1.0, 0.5, 0.5, 0.0),
        "4": (1.0, 1.0),
        "k": (0.1, 0.0),
    }
    groups = [
        TrainableGroup(
            name, "kg" if name == "k" else "db", tuple(make_trajectory(reward=r) for r in of)
        )
        for name, of in rewards.items()
    ]

    def kept(share: float, *taught: str) -> str:
        taken = split_by_variance(groups, share, taught_tasks=taught)
        assert sorted([*taken.trained, *taken.left_out], key=groups.index) == groups
        return "".join(group.group_id for group in taken.trained)

    assert kept(1.0) == "1234k"
    assert kept(0.6) == "123k"  # 2.4 of four, rounded up
    assert kept(0.5) == "12k"
    assert kept(0.25) == "2k"  # each task keeps one
    assert kept(0.25, "db") == "1234k"


def test_penalties_do_not_count_as_variance_but_the_reward_of_abnormal_ends_does(
    make_trajectory: MakeTrajectory,
) -> None:
    ends = (Status.TASK_LIMIT, Status.COMPLETED)
    mild = TrainableGroup("m", "db", tuple(make_trajectory(reward=r) for r in (0.5, 0.0)))
    ended = TrainableGroup("e", "db", tuple(make_trajectory(status=end) for end in ends))
    assert split_by_variance([mild, ended], 0.5) == TakenGroups([mild], [ended])
    assert split_by_variance([mild, ended], 0.5, -2.0) == TakenGroups([ended], [mild])


def test_tasks_are_normalised_apart_over_the_batch(make_trajectory: MakeTrajectory) -> None:
    groups = [
        TrainableGroup(
            task, task, tuple(make_trajectory([(4, 40)], 41, reward=r, task=task) for r in rewards)
        )
        for task, rewards in (("kg", (0.0, 0.1)), ("db", (0.0, 1.0)))
    ]
    config = resolve_settings(Trainer(task_norm_min_tokens=64))
    batch = assemble_batch(groups, config)
    assert batch.tasks == ("db", "kg")
    assert batch.task_ids.tolist() == [1, 1, 0, 0]
    # σ of kg is 0.05, under the floor of 0.1; σ of db is 0.5
    per_trajectory = batch.advantages[batch.loss_mask].reshape(4, 36)[:, 0]
    assert per_trajectory == pytest.approx(np.array([-0.5, 0.5, -1.0, 1.0], np.float32))
    assert batch.unnormalised == frozenset()
    strict = resolve_settings(Trainer(task_norm_min_tokens=73))
    assert assemble_batch(groups, strict).unnormalised == {"db", "kg"}


def test_environments_are_normalised_over_trajectories_however_long(
    make_trajectory: MakeTrajectory,
) -> None:
    lengths, rewards = (40, 8, 8, 8), (1.0, 0.0, 0.0, 0.0)
    members = tuple(
        make_trajectory([(4, length)], length + 1, reward=reward)
        for length, reward in zip(lengths, rewards, strict=True)
    )
    batch = assemble_batch(
        [TrainableGroup("g", "db", members)], resolve_settings(Trainer(normalise="environment"))
    )
    lasts = batch.advantages[np.cumsum([39, 9, 9, 9])]
    # 3/4 and −1/4 three times: mean 0, σ √3/4
    assert lasts == pytest.approx(np.array([3, -1, -1, -1]) / np.sqrt(3))


def test_steps_and_tokens_may_cost_reward_but_make_no_spread(
    make_trajectory: MakeTrajectory,
) -> None:
    members = (make_trajectory([(2, 4), (5, 6)], 7), make_trajectory([(1, 2)], 3))
    group = TrainableGroup("g", "db", members)
    batch = assemble_batch([group], resolve_settings(Trainer(turn_penalty=0.1, token_penalty=0.01)))
    assert batch.rewards == pytest.approx(np.array([-0.23, -0.11], np.float32))
    assert not has_spread(group)


def test_the_loss_is_shared_out_by_groups_and_weights_of_tasks(
    make_trajectory: MakeTrajectory,
) -> None:
    groups = [
        TrainableGroup("a", "db", (make_trajectory([(2, 4)], 5), make_trajectory([(2, 4)], 5))),
        TrainableGroup("b", "kg", (make_trajectory([(2, 3)], 4, task="kg"),)),
    ]
    chosen = resolve_settings(Trainer(aggregate="group_mean", task_weights={"kg": 3.0}))
    batch = assemble_batch(groups, chosen)
    # db: 1/4 a token of four, kg: 3 for its one
    assert batch.shares[batch.loss_mask] == pytest.approx(np.array([1 / 16] * 4 + [3 / 4]))


def test_a_sequence_of_several_policies_is_refused_by_a_sequence_level_loss(
    make_trajectory: MakeTrajectory,
) -> None:
    mixed = TrainableGroup("g", "db", (make_trajectory([(2, 4), (5, 6)], 7, seed=3),))
    with pytest.raises(ConfigError, match="episode episode-3 has several policies"):
        assemble_batch([mixed], resolve_settings(Trainer(loss="gspo")))
    first, _ = mixed.members[0].policies
    twice = msgspec.structs.replace(first, track="lagged(4)")
    member = msgspec.structs.replace(mixed.members[0], policies=(first, twice))
    of_one = TrainableGroup("g", "db", (member,))
    assert assemble_batch([of_one], resolve_settings(Trainer(loss="gspo"))).loss_mask.sum() == 3
    allowed = resolve_settings(Trainer(loss="gspo", mixed_sequences=True))
    assert assemble_batch([mixed], allowed).loss_mask.sum() == 3
    alone = TrainableGroup("g", "db", (make_trajectory([(2, 4)], 7),))
    assert assemble_batch([alone], resolve_settings(Trainer(loss="gspo"))).loss_mask.sum() == 2
