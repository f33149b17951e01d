"""The content of an item: a question, its graph, and the part of the ontology that it needs."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Literal

import msgspec

Rules = Literal["strict", "permissive"]
UNKNOWN_TYPE = "common.topic"  # of a relation whose range the ontology does not tell


@dataclass(frozen=True, slots=True)
class Ontology:
    """The types and relations that tools show. `ranges`: type by relation."""

    ranges: Mapping[str, str]
    relations: Set[str]
    attributes: Set[str]

    def range_of(self, relation: str) -> str:
        return self.ranges.get(relation, UNKNOWN_TYPE)


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item. `actions`: gold tool calls, `tool(argument,argument)`; the last makes the answer.

    `entities`: ids by the names the question uses. `answers`: ids, or one number.
    `shared`: the dataset whose graph it asks about; where empty, `triples` (subject, relation,
    object) and `attributes` (subject, attribute, value) are the graph, `ranges` tell the type of
    each relation's objects, and `hidden` are the predicates outside the benchmark's vocabulary.
    `short`: the question for a compact prompt.
    """

    question: str
    entities: dict[str, str]
    answers: list[str]
    actions: list[str] = []
    shared: str = ""
    triples: list[tuple[str, str, str]] = []
    attributes: list[tuple[str, str, str | int | float]] = []
    ranges: dict[str, str] = {}
    hidden: list[str] = []
    short: str = ""

    def ontology(self, rules: Rules) -> Ontology:
        """Return the ontology; the permissive rules include hidden predicates."""
        hidden = set(self.hidden) if rules == "strict" else set()
        relations = {relation for _, relation, _ in self.triples} | self.ranges.keys()
        attributes = {attribute for _, attribute, _ in self.attributes}
        return Ontology(self.ranges, relations - hidden, attributes - hidden)


def exact_match(found: Set[str], gold: Set[str]) -> bool:
    """Return the benchmark's reward: equal sets; an empty set never scores."""
    return bool(found) and found == gold


def f1(found: Set[str], gold: Set[str]) -> float:
    """Return the benchmark's score: harmonic mean of precision and recall."""
    both = len(found & gold)
    return 2 * both / (len(found) + len(gold)) if both else 0.0
