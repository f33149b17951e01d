from typing import Any

import msgspec
import pytest
from trajectories import trajectory

from agentrl.core.trajectory import PolicyRef
from agentrl.trainer.algorithm.metrics import staleness
from agentrl.trainer.batch import TrainableGroup


def sampled_by(*policies: tuple[int, str]) -> Any:
    """A trajectory with one step of each policy: its version and track."""
    refs = tuple(
        PolicyRef(checkpoint_id=f"v{version}", version=version, track=track, server_id="s")
        for version, track in policies
    )
    body = trajectory("run")
    (first, *_) = body.steps
    steps = tuple(
        msgspec.structs.replace(first, policy_index=place) for place in range(len(policies))
    )
    return msgspec.structs.replace(body, policies=refs, steps=steps)


def test_staleness_is_the_mean_over_steps_of_the_updates_since_they_were_sampled() -> None:
    db = TrainableGroup("g1", "db", (sampled_by((9, "current"), (6, "lagged(4)")),))
    os = TrainableGroup("g2", "os", (sampled_by((10, "current"), (-1, "teacher")),))
    assert staleness([db, os], 10) == pytest.approx(
        {
            "staleness": (1 + 4 + 0) / 3,
            "staleness_fresh": (1 + 0) / 2,
            "staleness_lagged": 4.0,
            "db/staleness": 2.5,
            "os/staleness": 0.0,
        }
    )


def test_without_steps_of_our_own_policies_there_is_no_staleness() -> None:
    outside = TrainableGroup("g", "db", (sampled_by((-1, "teacher")),))
    assert staleness([outside], 3) == {}
