"""What an environment answers is in numbers that a body and JSON carry, or a readable error."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.contract import Message, Outcome
from agentrl.envs.outcome_check import check_outcome

GO = (Message("user", "go on"),)


def test_numbers_of_any_kind_become_floats() -> None:
    checked = check_outcome(
        Outcome(
            (),
            done=True,
            reward=np.float32(1),  # type: ignore[arg-type]
            score=1,
            metrics={"steps": np.int64(3)},
            branch_rewards={2: np.float64(0.5)},
        )
    )
    numbers = (checked.reward, checked.score, checked.metrics["steps"], checked.branch_rewards[2])
    assert numbers == (1.0, 1.0, 3.0, 0.5)
    assert {type(each) for each in numbers} == {float}


@pytest.mark.parametrize("value", [float("nan"), 10**400, True, np.bool_(True), "1", Decimal(1)])
@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("reward", "reward"),
        ("score", "score"),
        ("metrics", "metrics['m']"),
        ("branch_rewards", "branch_rewards[2]"),
    ],
)
def test_what_is_no_number_is_named(value: object, field: str, named: str) -> None:
    nested = {"metrics": {"m": value}, "branch_rewards": {2: value}}
    given: Any = {field: nested.get(field, value)}
    with pytest.raises(EnvironmentFailure) as failed:
        check_outcome(Outcome(GO, **given))
    assert str(failed.value).startswith(f"the environment's {named} is ")


def test_an_episode_goes_on_with_a_message_only() -> None:
    with pytest.raises(EnvironmentFailure, match="gave no message and is not done") as failed:
        check_outcome(Outcome(()))
    assert failed.value.hint == "return a message, or done=True, in its Outcome"
    assert check_outcome(Outcome(GO)).messages == GO
