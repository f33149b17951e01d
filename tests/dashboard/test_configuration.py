import json

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.config.sections.run import Run as RunSection
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer
from agentrl.dashboard.viewmodels.configuration import (
    NO_VALUE,
    config_rows,
    difference_rows,
    values_of,
)

ONE = Config(
    tasks={"kg": Task(max_turns=7, options={"style": "compact"})},
    run=RunSection(name="one", stop_updates=8),
    policy=[PolicyServer(name="p", tracks=["current", "lagged(4)"])],
)
OTHER = Config(
    tasks={"kg": Task(max_turns=9)},
    run=RunSection(name="other", stop_updates=8),
    trainer=Trainer(learning_rate=1e-3),
    policy=ONE.policy,
)


def values(config: Config) -> dict[str, tuple[str, str]]:
    return values_of(config_loading.dumps(config), config.run.name)


def test_only_keys_that_are_not_at_their_default_are_changed() -> None:
    rows = config_rows(values(ONE), changed=True)
    assert {row["key"]: row["value"] for row in rows} == {
        "run.name": "one",
        "run.stop_updates": "8",
        "tasks.kg.max_turns": "7",
        "tasks.kg.options": '{"style":"compact"}',
        "policy[0].name": "p",
        "policy[0].tracks": '["current","lagged(4)"]',
    }
    assert {"key": "run.stop_updates", "value": "8", "default": NO_VALUE} in rows
    every = config_rows(values(ONE), changed=False)
    assert len(every) > 100
    assert {"key": "workers", "value": "1", "default": "1"} in every


def test_runs_differ_in_the_keys_whose_values_do_without_their_own_name() -> None:
    rows = difference_rows({"one": values(ONE), "other": values(OTHER)})
    assert rows == [
        {"key": "tasks.kg.max_turns", "one": "7", "other": "9"},
        {"key": "tasks.kg.options", "one": '{"style":"compact"}', "other": "{}"},
        {"key": "trainer.learning_rate", "one": NO_VALUE, "other": "0.001"},
    ]
    assert difference_rows({"one": values(ONE), "again": values(ONE)}) == []


def test_a_configuration_of_another_version_is_shown_as_it_stands() -> None:
    written = json.dumps({"run": {"name": "old", "gone": True}, "tasks": {}})
    found = values_of(written, "old")
    assert found == {"run.name": ("old", ""), "run.gone": ("true", ""), "tasks": ("{}", "")}
