"""The reward that the tests of a task folder write."""

from typing import Any

import pytest
from harbor_tasks import Opened, ended, scripted

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.types import Status


def test_an_answer_of_the_agents_own_is_no_reward(opened: Opened) -> None:
    outcome = ended(opened(), "mkdir -p /tests; echo 1 | tee /logs/verifier/reward.json /tests/x")
    assert outcome.reward == 0.0


@pytest.mark.parametrize(
    ("written_as", "options", "reward"),
    [
        ("echo '{\"accuracy\": 0.5}' > reward.json; echo 1 > reward.txt", {}, 0.5),
        ('echo \'{"reward": 0.25, "speed": 2}\' > reward.json', {}, 0.25),
        ('echo \'{"reward": 0.25, "speed": 2}\' > reward.json', {"reward": "speed"}, 2.0),
    ],
)
def test_a_reward_is_a_number_or_one_of_several(
    opened: Opened, written_as: str, options: Any, reward: float
) -> None:
    outcome = ended(opened(options, **scripted(f"cd /logs/verifier; {written_as}")))
    assert (outcome.reward, outcome.score) == (reward, reward)
    assert outcome.metrics.get("speed", 2.0) == 2.0


def test_tests_without_a_reward_are_the_tasks_failure_unless_the_agent_caused_it(
    opened: Opened,
) -> None:
    broken = opened(**scripted("echo no pytest here; exit 3"))
    with pytest.raises(
        EnvironmentFailure, match=r"test\.sh wrote no reward: no pytest here"
    ) as told:
        ended(broken)
    assert "/logs/verifier/reward.txt" in told.value.hint
    outcome = ended(opened(), "mv /usr/bin/bash /usr/bin/mkdir /tmp")
    assert (outcome.done, outcome.reward, outcome.metrics["no_reward"]) == (True, 0.0, 1.0)


@pytest.mark.parametrize("text", ["", "one", "nan", "inf"])
def test_a_reward_that_is_no_number_is_none(opened: Opened, text: str) -> None:
    source = opened(**scripted(f"echo {text} > /logs/verifier/reward.txt"))
    with pytest.raises(EnvironmentFailure, match=f"wrote no reward, but '{text}'"):
        ended(source)


def test_times_of_the_agent_and_of_the_tests_are_the_tasks_own(opened: Opened) -> None:
    source = opened(**{"task.toml": "[agent]\ntimeout_sec = 1\n[verifier]\ntimeout_sec = 1\n"})
    outcome = ended(source, "wc -l < words.txt > answer.txt; sleep 60")
    assert (outcome.status, outcome.reward) == (Status.TASK_LIMIT, 1.0)
    slow = opened(**{"task.toml": "[verifier]\ntimeout_sec = 1\n"} | scripted("sleep 60"))
    assert (ended(slow).reward, ended(slow).metrics["tests_late"]) == (0.0, 1.0)
    capped = opened({"verifier_timeout_s": 1.0}, **scripted("sleep 60"))
    with pytest.raises(EnvironmentFailure, match=r"took over 1 s") as told:
        ended(capped)
    assert "verifier_timeout_s" in told.value.hint
