"""A small graph to think through by hand, and the benchmark's data where it is at hand."""

from collections.abc import Callable

import pytest

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.datasets import Dataset, locate
from agentrl.envs.tasks.kg.graph import LocalGraph
from agentrl.envs.tasks.kg.problem import Ontology, Rules
from agentrl.envs.tasks.kg.tools import Workbench

#   ann ─boss▶ bob ─boss▶ eva        ann, bob ─home▶ oslo      eva ─home▶ rome
#   oslo ─people▶ ann, bob           rome ─people▶ eva         acme ─staff▶ bob, eva
TRIPLES = [
    ("m.ann", "boss", "m.bob"),
    ("m.bob", "boss", "m.eva"),
    ("m.ann", "home", "m.oslo"),
    ("m.bob", "home", "m.oslo"),
    ("m.eva", "home", "m.rome"),
    ("m.oslo", "people", "m.ann"),
    ("m.oslo", "people", "m.bob"),
    ("m.rome", "people", "m.eva"),
    ("m.acme", "staff", "m.bob"),
    ("m.acme", "staff", "m.eva"),
    ("m.acme", "secret", "m.ann"),
]
AGES = [("m.ann", "age", 9), ("m.bob", "age", 30), ("m.eva", "age", 30)]
RANGES = {
    "boss": "person", "home": "city", "people": "person", "staff": "worker", "secret": "person",
}  # fmt: skip
ENTITIES = {"ann": "m.ann", "oslo": "m.oslo", "acme": "m.acme", "g": "g.1"}


@pytest.fixture(scope="session")
def edges() -> tuple[list[tuple[str, str, str]], list[tuple[str, str, int]]]:
    """Triples and attributes of `graph`."""
    return TRIPLES, AGES


@pytest.fixture(scope="session")
def graph() -> LocalGraph:
    return LocalGraph(TRIPLES, AGES)


@pytest.fixture
def bench(graph: LocalGraph) -> Callable[[Rules], Workbench]:
    def made(rules: Rules) -> Workbench:
        hidden = {"secret"} if rules == "strict" else set()
        ontology = Ontology(RANGES, RANGES.keys() - hidden, {"age"})
        return Workbench(graph, ontology, ENTITIES, rules)

    return made


@pytest.fixture
def dataset() -> Callable[[Dataset], Dataset]:
    """Skips where the dataset is not on this machine."""

    def present(wanted: Dataset) -> Dataset:
        try:
            locate(wanted)
        except ItemError as error:
            pytest.skip(str(error))
        return wanted

    return present
