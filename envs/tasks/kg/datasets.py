"""The benchmark's questions with their support graphs, and real Freebase triples to ask about."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Item
from agentrl.envs.tasks import options
from agentrl.envs.tasks.datasets import Dataset, locate, locate_file, read_json, read_rows
from agentrl.envs.tasks.kg.graph import LocalGraph
from agentrl.envs.tasks.kg.problem import Ontology, Problem, Rules
from agentrl.envs.tasks.kg.program import NAME

SPLITS = {
    "dev": ("agentbench_dev.json", "support_graphs/dev.jsonl"),
    "rl": ("agentbench_kg_rl_all.json", "support_graphs/kg_rl_all.jsonl"),
    "standard": ("agentbench_std.json", "support_graphs/std.jsonl"),
}
_TRAINING = ("dev", "rl")  # splits of the dataset `agentbench`
_VOCABULARY, _ROLES = "ontology/vocab.json", "ontology/fb_roles"
_REVERSE = "ontology/reverse_properties"
_NUMERIC = frozenset({"type.int", "type.float", "type.datetime"})
_TRIPLES, _NAMES = "fb15k237.nt.xz", "entity_names.tsv"

ONTOLOGY = Dataset(
    "kg",
    "ontology",
    tuple(f"kg/{path}" for path in (_VOCABULARY, _ROLES)),
    "src/server/tasks/knowledgegraph/ontology of https://github.com/THUDM/AgentBench",
    "Apache-2.0; Freebase's schema CC BY 2.5",
    "13,100 relations, 3,384 attributes",
    origin=False,
)
AGENTBENCH = Dataset(
    "kg",
    "agentbench",
    (*(f"kg/{SPLITS[split][0]}" for split in _TRAINING), *ONTOLOGY.paths),
    "data/knowledgegraph of https://github.com/THUDM/AgentBench",
    "Apache-2.0; from GrailQA, ComplexWebQuestions, GraphQuestions, WebQSP",
    "20 dev, 1,214 rl",
    shipped={
        "kg/agentbench_dev.json": "agentbench/knowledgegraph/dev.json",
        "kg/agentbench_kg_rl_all.json": "agentbench/knowledgegraph/kg_rl_all.json",
    },
)
STANDARD = Dataset(
    "kg",
    "agentbench-standard",
    (f"kg/{SPLITS['standard'][0]}",),
    "data/knowledgegraph/std.json of https://github.com/THUDM/AgentBench, as agentbench_std.json",
    "as agentbench",
    "150 standard, of agentbench",
    origin=False,
    shipped={"kg/agentbench_std.json": "agentbench/knowledgegraph/std.json"},
)
SUPPORT_GRAPHS = Dataset(
    "kg",
    "support_graphs",
    (*(f"kg/{SPLITS[split][1]}" for split in _TRAINING), f"kg/{_REVERSE}"),
    "made from agentbench: a line {qid, triples, attributes} for a question, on which its actions "
    "give its answers; not needed where an endpoint holds Freebase",
    "as agentbench",
    "20 dev, 1,214 rl",
    origin=False,
)
STANDARD_GRAPHS = Dataset(
    "kg",
    "support_graphs-standard",
    (f"kg/{SPLITS['standard'][1]}",),
    "made from agentbench-standard as support_graphs; not needed where an endpoint holds Freebase",
    "as agentbench",
    "150 standard",
    origin=False,
)
FB15K237 = Dataset(
    "kg",
    "fb15k237",
    tuple(f"kg/{path}" for path in (_TRIPLES, _NAMES, _ROLES)),
    "FB15k-237 of https://github.com/thunlp/OpenKE as N-Triples; names: "
    "https://github.com/yao8839836/kg-bert, as id<TAB>name",
    "CC BY 2.5 (Freebase)",
    "310,116 triples",
)
DATASETS: tuple[Dataset, ...] = (
    AGENTBENCH,
    STANDARD,
    SUPPORT_GRAPHS,
    STANDARD_GRAPHS,
    FB15K237,
    ONTOLOGY,
)
_NO_GRAPH: Mapping[str, Any] = {"triples": [], "attributes": []}
_READING = Lock()


@dataclass(frozen=True, slots=True)
class Freebase:
    """The schema of all of Freebase."""

    ranges: Mapping[str, str]
    relations: frozenset[str]
    attributes: frozenset[str]

    @classmethod
    def read(cls, given: str) -> "Freebase":
        """Raises ItemError."""
        root = locate(ONTOLOGY, given) / "kg"
        vocabulary = read_json(root / _VOCABULARY, dict[str, Any])
        return cls(
            ranges_of(root),
            frozenset(vocabulary["relations"]),
            frozenset(vocabulary["attributes"]),
        )

    def ontology(self, rules: Rules) -> Ontology:
        """The permissive rules show what the vocabulary leaves out."""
        if rules == "strict":
            return Ontology(self.ranges, self.relations, self.attributes)
        numeric = {name for name, kind in self.ranges.items() if kind in _NUMERIC}
        attributes = self.attributes | numeric
        return Ontology(self.ranges, self.relations | (self.ranges.keys() - attributes), attributes)


@dataclass(frozen=True, slots=True)
class NamedGraph:
    """A large graph with names for its entities. `names`: by id, for those that have one."""

    graph: LocalGraph
    ontology: Ontology
    names: Mapping[str, str]

    @classmethod
    def read(cls, given: str) -> "NamedGraph":
        """FB15k-237, which has no attributes. Raises ConfigError, ItemError."""
        root = locate(FB15K237, given) / "kg"
        graph = LocalGraph.read(root / _TRIPLES)
        ranges = ranges_of(root)
        relations = graph.select("SELECT DISTINCT ?r WHERE { ?s ?r ?o }")
        kinds = {relation: ranges.get(relation.split("..")[-1]) for relation in relations}
        known = {relation: kind for relation, kind in kinds.items() if kind}
        ontology = Ontology(known, frozenset(relations), frozenset())
        return cls(graph, ontology, dict(_names(root / _NAMES)))


def fb15k237(given: str) -> NamedGraph:
    """The graph of FB15k-237, read once in a process and kept. Raises ConfigError, ItemError."""
    root = locate(FB15K237, given)
    with _READING:
        return _read_cache(str(root))


@lru_cache(maxsize=1)
def _read_cache(root: str) -> NamedGraph:
    return NamedGraph.read(root)


def agentbench(split: str, given: str, *, graphs: bool = True) -> tuple[Item, ...]:
    """The items of a split, in the order of the benchmark, with their graphs. Raises ItemError."""
    questions = f"kg/{SPLITS[split][0]}"
    file = locate_file(AGENTBENCH if split in _TRAINING else STANDARD, questions, given)
    schema = Freebase.read(given)
    by_id = _graphs(split, given) if graphs else {}
    items = []
    for place, record in _rows(file):
        try:
            graph = by_id[record["qid"]] if graphs else _NO_GRAPH
            problem = _problem(record, graph, schema)
        except (KeyError, TypeError, ValueError) as error:
            raise ItemError(f"kg: {place}: no item: {error!r}") from error
        items.append(Item("kg", f"{split}-{record['qid']}", options.content(problem)))
    return tuple(items)


def _graphs(split: str, given: str) -> dict[str, Mapping[str, Any]]:
    dataset = SUPPORT_GRAPHS if split in _TRAINING else STANDARD_GRAPHS
    path = locate_file(dataset, f"kg/{SPLITS[split][1]}", given)
    return {graph["qid"]: graph for _, graph in _rows(path)}


def ranges_of(root: Path) -> dict[str, str]:
    """The type of each relation's objects. Raises ItemError."""
    ranges = {}
    with (root / _ROLES).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            fields = line.split()
            if len(fields) < 3:
                raise ItemError(f"kg: {_ROLES}: line {number}: not domain, relation and range")
            ranges[fields[1]] = fields[2]
    return ranges


def _problem(record: Mapping[str, Any], graph: Mapping[str, Any], schema: Freebase) -> Problem:
    relations = {relation for _, relation, _ in graph["triples"]}
    attributes = {attribute for _, attribute, _ in graph["attributes"]}
    return Problem(
        question=record["question"],
        entities=record["entities"],
        answers=sorted({answer["answer_argument"] for answer in record["answer"]}),
        actions=record["actions"],
        triples=[(s, r, o) for s, r, o in graph["triples"]],
        attributes=[(s, a, value) for s, a, value in graph["attributes"]],
        ranges={name: schema.ranges[name] for name in sorted(relations) if name in schema.ranges},
        hidden=sorted((relations - schema.relations) | (attributes - schema.attributes)),
    )


def _names(path: Path) -> Iterator[tuple[str, str]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            entity, _, name = line.rstrip("\n").partition("\t")
            if NAME.fullmatch(entity) and name:
                yield entity, name


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    for place, row in read_rows(path):
        try:
            yield place, json.loads(bytes(row))
        except ValueError as error:
            raise ItemError(f"kg: {place}: {error}") from error
