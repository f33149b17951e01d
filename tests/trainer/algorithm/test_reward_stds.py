from collections.abc import Callable

import pytest

from agentrl.core.trajectory import Trajectory
from agentrl.core.types import Status
from agentrl.trainer.algorithm.metrics import reward_stds
from agentrl.trainer.batch import TrainableGroup

MakeTrajectory = Callable[..., Trajectory]


def test_the_spread_of_a_tasks_rewards_is_the_mean_over_its_groups(
    make_trajectory: MakeTrajectory,
) -> None:
    rewards = {  # task, rewards of a group: σ
        "1": ("db", (0.0, 1.0, 0.0, 1.0)),  # 1/2
        "2": ("db", (3.0, 3.0, 5.0, 5.0)),  # 1: a level of its own does not count
        "3": ("db", (1.0, 1.0)),  # 0
        "4": ("os", (0.0, 0.0, 1.0)),  # √2/3
    }
    groups = [
        TrainableGroup(name, task, tuple(make_trajectory(reward=each) for each in of))
        for name, (task, of) in rewards.items()
    ]
    expected = {"db/reward_std": 0.5, "os/reward_std": 2**0.5 / 3}
    assert reward_stds(groups) == pytest.approx(expected)


def test_the_spread_counts_the_reward_of_abnormal_ends(make_trajectory: MakeTrajectory) -> None:
    ends = (Status.TASK_LIMIT, Status.COMPLETED)
    group = TrainableGroup("g", "db", tuple(make_trajectory(status=end) for end in ends))
    assert reward_stds([group]) == {"db/reward_std": 0.0}
    assert reward_stds([group], -0.2) == {"db/reward_std": pytest.approx(0.1)}
