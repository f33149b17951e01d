"""The seven tools over one graph, and the variables they have made.

Whatever the agent asks for and cannot have is a ToolError it can read.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentrl.envs.tasks.kg.graph import Graph
from agentrl.envs.tasks.kg.problem import Ontology, Rules
from agentrl.envs.tasks.kg.program import (
    NAME,
    And,
    Count,
    Entity,
    Extreme,
    Join,
    Program,
    ProgramError,
    answers,
    entities,
    predicates,
    require_size,
)

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "get_relations": ("variable",),
    "get_neighbors": ("variable", "relation"),
    "intersection": ("variable1", "variable2"),
    "get_attributes": ("variable",),
    "argmax": ("variable", "attribute"),
    "argmin": ("variable", "attribute"),
    "count": ("variable",),
}
MAX_VARIABLES = 1000  # of an episode: a turn may hold any number of calls
NUMBER = "type.int"
_STRICT_ID = re.compile(r"[mf]\.[A-Za-z0-9_]+")
_INDEX = re.compile(r"#(\d{1,6})")


class ToolError(ValueError):
    """Raised for a call that cannot be done; the text is for the agent."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A set of entities, or a number; `type` is what its members are instances of."""

    program: Program
    type: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The answer of a tool that makes no variable."""

    names: tuple[str, ...]


class Workbench:
    """The tools and variables of one episode."""

    def __init__(
        self, graph: Graph, ontology: Ontology, entities: Mapping[str, str], rules: Rules
    ) -> None:
        self._graph = graph
        self._ontology = ontology
        self._entities = entities
        self._strict = rules == "strict"
        self._listed: dict[tuple[str, str], frozenset[str]] = {}
        self.variables: list[Variable] = []
        self._tools: Mapping[str, Callable[..., Listing | Variable]] = {
            "get_relations": self._get_relations,
            "get_neighbors": self._get_neighbors,
            "intersection": self._intersection,
            "get_attributes": self._get_attributes,
            "argmax": lambda variable, attribute: self._extreme("argmax", variable, attribute),
            "argmin": lambda variable, attribute: self._extreme("argmin", variable, attribute),
            "count": self._count,
        }

    def use(self, tool: str, *arguments: str) -> Listing | Variable:
        """A tool of PARAMETERS with its arguments in their order; a new variable comes last in
        `variables`. Raises ToolError, EnvironmentFailure."""
        try:
            result = self._tools[tool](*arguments)
        except ProgramError as error:
            raise ToolError(f"{tool}: {error}") from error
        if isinstance(result, Variable):
            if len(self.variables) >= MAX_VARIABLES:
                raise ToolError(f"{tool}: there are too many variables")
            self.variables.append(result)
        return result

    def answer(self, index: int) -> set[str]:
        """Return a variable's members, or its number. Raises IndexError, EnvironmentFailure."""
        program = self.variables[index].program
        return set(self._graph.select(answers(program, self._without(program))))

    def _get_relations(self, variable: str) -> Listing:
        return Listing(tuple(sorted(self._list("get_relations", variable, "relation"))))

    def _get_attributes(self, variable: str) -> Listing:
        self._variable("get_attributes", variable)
        return Listing(tuple(sorted(self._list("get_attributes", variable, "attribute"))))

    def _get_neighbors(self, variable: str, relation: str) -> Variable:
        program = self._set("get_neighbors", variable)
        if relation not in self._known("get_neighbors", variable, "relation"):
            raise ToolError("get_neighbors: relation must be a relation of the variable")
        joined = require_size(Join(relation, inverse=True, of=program))
        return Variable(joined, self._ontology.range_of(relation))

    def _intersection(self, variable1: str, variable2: str) -> Variable:
        left = self._variable("intersection", variable1)
        right = self._variable("intersection", variable2)
        if self._strict and left.type != right.type:
            raise ToolError("intersection: two variables must have the same type")
        return Variable(require_size(And(left.program, right.program)), left.type)

    def _extreme(self, tool: str, variable: str, attribute: str) -> Variable:
        of = self._variable(tool, variable)
        if attribute not in self._known(tool, variable, "attribute"):
            raise ToolError(f"{tool}: attribute must be an attribute of the variable")
        extreme = require_size(Extreme(of.program, attribute, largest=tool == "argmax"))
        return Variable(extreme, of.type)

    def _count(self, variable: str) -> Variable:
        return Variable(require_size(Count(self._variable("count", variable).program)), NUMBER)

    def _known(self, tool: str, variable: str, kind: str) -> frozenset[str]:
        """Return what was listed of a variable; the permissive rules list it first."""
        key = kind, str(self._set(tool, variable))
        if key in self._listed or self._strict:
            return self._listed.get(key, frozenset())
        return self._list(tool, variable, kind)

    def _list(self, tool: str, variable: str, kind: str) -> frozenset[str]:
        program = self._set(tool, variable)
        if (known := self._listed.get((kind, str(program)))) is not None:
            return known
        known_names = self._ontology.relations if kind == "relation" else self._ontology.attributes
        names = self._graph.select(predicates(program, self._without(program)))
        listed = frozenset(names) & known_names
        self._listed[kind, str(program)] = listed
        return listed

    def _set(self, tool: str, reference: str) -> Program:
        """Return the set of `#k`, or of one entity by name or id."""
        if reference.startswith("#"):
            program = self._variable(tool, reference).program
            if isinstance(program, Count):
                raise ToolError(f"{tool}: variable {reference} is a number")
            return program
        name = self._entities.get(reference, reference)
        if not (_STRICT_ID if self._strict else NAME).fullmatch(name):
            raise ToolError(f"{tool}: variable must be a variable or an entity")
        return Entity(name)

    def _variable(self, tool: str, reference: str) -> Variable:
        match = _INDEX.fullmatch(reference)
        if not match:
            raise ToolError(f"{tool}: variable must be a variable")
        index = int(match[1])
        if index >= len(self.variables):
            raise ToolError(f"{tool}: there is no variable #{index}")
        return self.variables[index]

    def _without(self, program: Program) -> set[str]:
        """Return the entities a strict set excludes: those it was made from."""
        return entities(program) if self._strict else set()
