"""Episodes of the env server are those of this process, whatever data it has."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.envs.contract import Item, Message, Outcome, TaskSource
from agentrl.envs.server.client import RemoteSource
from agentrl.envs.server.server import EnvServer
from agentrl.envs.tasks.kg.task_source import KgSource

OPTIONS = {"items": 4, "test_items": 2, "difficulty": "hard"}


@pytest.fixture
def remote() -> Iterator[RemoteSource]:
    server = EnvServer({"kg": Task(options=OPTIONS)})
    yield RemoteSource(Envs(url=server.url), "kg", OPTIONS)
    server.close()


def conversation(source: TaskSource, item: Item) -> list[Any]:
    environment, expert = source.make(item), source.expert(item, seed=1, noise=0.3)
    outcome = Outcome(environment.start().messages)
    said: list[Any] = [outcome.messages]
    for _ in range(source.max_turns):
        turn = expert.act(outcome.messages)
        outcome = environment.call(turn if isinstance(turn, str) else [turn])
        said += [turn, outcome]
        if outcome.done:
            break
    environment.close()
    return said


def test_a_served_conversation_is_the_one_in_this_process(remote: RemoteSource) -> None:
    near = KgSource(OPTIONS)
    for item in near.items("train"):
        assert conversation(remote, item) == conversation(near, item)


def test_an_item_of_elsewhere_brings_its_graph(remote: RemoteSource) -> None:
    item = Item("kg", "elsewhere", {
        "question": "Who?", "entities": {"Kim": "m.0k"}, "answers": ["m.0b"],
        "actions": ["get_relations(m.0k)", "get_neighbors(m.0k,people.person.boss)"],
        "triples": [["m.0k", "people.person.boss", "m.0b"]],
        "ranges": {"people.person.boss": "people.person"},
    })  # fmt: skip
    told = conversation(remote, item)
    assert Message("user", "Who?\nEntities: [Kim]") in told[0]
    assert told == conversation(KgSource({}), item)
