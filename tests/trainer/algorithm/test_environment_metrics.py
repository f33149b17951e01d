import msgspec
import pytest
from trajectories import trajectory

from agentrl.core.trajectory import Trajectory
from agentrl.trainer.algorithm.metrics import MOST_METRICS, environment_metrics
from agentrl.trainer.batch import TrainableGroup


def with_metrics(**metrics: float) -> Trajectory:
    return msgspec.structs.replace(trajectory("run"), metrics=metrics)


def test_a_metric_of_environments_is_the_mean_of_the_tasks_episodes_that_have_it() -> None:
    sums = [with_metrics(tool_used=1.0, tool_calls=3.0), with_metrics(tool_used=0.0)]
    more = [with_metrics(tool_used=1.0)]
    groups = [
        TrainableGroup("g1", "maths", tuple(sums)),
        TrainableGroup("g2", "maths", tuple(more)),
        TrainableGroup("g3", "kg", (with_metrics(),)),
    ]
    assert environment_metrics(groups) == pytest.approx(
        {"maths/tool_used": 2 / 3, "maths/tool_calls": 3.0}
    )


def test_names_that_trackers_refuse_and_too_many_are_left_out() -> None:
    odd = with_metrics(**{"weight/current": 1.0, "ä": 1.0, "": 1.0, "x" * 61: 1.0, "a b": 1.0})
    assert environment_metrics([TrainableGroup("g", "maths", (odd,))]) == {}
    many = with_metrics(**{f"n{number:03}": 1.0 for number in range(500)})
    assert len(environment_metrics([TrainableGroup("g", "maths", (many,))])) == MOST_METRICS
