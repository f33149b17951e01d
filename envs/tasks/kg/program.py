"""Programs over a graph, as s-expressions, and the SPARQL they stand for.

    (JOIN (R r) p)    what the members of p have as r     (JOIN r p)    what has one of them as r
    (AND p q)         members of both                     (COUNT p)     how many
    (ARGMAX p a)      the members with the largest a      (ARGMIN p a)  … the smallest

Names become part of a query and are checked when a program is made: whatever holds a character
that could end an IRI is refused. Queries name nothing by prefix: some stores refuse two dots there.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

NAMESPACE = "http://rdf.freebase.com/ns/"
MAX_SIZE = 64  # of a program: a query grows with it, and an agent can double it with every call
MAX_ANSWERS = 100_000  # rows of one query
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,255}")
_ENGLISH = "FILTER (!isLiteral(?x) || lang(?x) = '' || langMatches(lang(?x), 'en'))"


class ProgramError(ValueError):
    """Raised for an ill-formed or too large program; the text is for the agent."""


@dataclass(frozen=True, slots=True)
class Entity:
    """One entity, by id."""

    name: str

    def __post_init__(self) -> None:
        _check(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Join:
    """`inverse`: from subject to object, written (R relation)."""

    relation: str
    inverse: bool
    of: "Program"

    def __post_init__(self) -> None:
        _check(self.relation)

    def __str__(self) -> str:
        relation = f"(R {self.relation})" if self.inverse else self.relation
        return f"(JOIN {relation} {self.of})"


@dataclass(frozen=True, slots=True)
class And:
    left: "Program"
    right: "Program"

    def __str__(self) -> str:
        return f"(AND {self.left} {self.right})"


@dataclass(frozen=True, slots=True)
class Extreme:
    """The members of `of` with the largest or smallest value of `attribute`, with ties."""

    of: "Program"
    attribute: str
    largest: bool

    def __post_init__(self) -> None:
        _check(self.attribute)

    def __str__(self) -> str:
        return f"({'ARGMAX' if self.largest else 'ARGMIN'} {self.of} {self.attribute})"


@dataclass(frozen=True, slots=True)
class Count:
    """The number of members; only outermost."""

    of: "Program"

    def __str__(self) -> str:
        return f"(COUNT {self.of})"


Program = Entity | Join | And | Extreme | Count


def require_size(program: Program) -> Program:
    """Return the program. Raises ProgramError if it exceeds MAX_SIZE or counts a count."""
    for part in parts(program):
        if isinstance(part, Count):
            raise ProgramError("a number is no set of entities")
    if size(program) > MAX_SIZE:
        raise ProgramError("the variable is made of too many steps")
    return program


def parts(program: Program) -> tuple[Program, ...]:
    match program:
        case Entity():
            return ()
        case And(left, right):
            return (left, right)
        case _:
            return (program.of,)


def size(program: Program) -> int:
    """Return what its query grows with: an extreme counts its set twice."""
    inner = sum(size(part) for part in parts(program))
    return 1 + (2 * inner if isinstance(program, Extreme) else inner)


def entities(program: Program) -> set[str]:
    """Return the ids that a program starts from."""
    if isinstance(program, Entity):
        return {program.name}
    return {name for part in parts(program) for name in entities(part)}


def members(program: Program, without: Iterable[str] = ()) -> str:
    """Return the query of a program's members, or of its number, in one column.

    `without`: entities that are no members. As in the original, an extreme is chosen among the
    others and then finds everything that shares its value.
    """
    filters = " ".join([_ENGLISH, *(f"FILTER (?x != {_iri(name)})" for name in sorted(without))])
    match program:
        case Entity(name):
            return f"SELECT ?x WHERE {{ VALUES ?x {{ {_iri(name)} }} }}"
        case Count(of):
            return f"SELECT (COUNT(DISTINCT ?x) AS ?n) WHERE {{ {_pattern(of)} {filters} }}"
        case Extreme():
            return f"SELECT DISTINCT ?x WHERE {{ {_extreme(program, 'x', filters)} }}"
        case _:
            return f"SELECT DISTINCT ?x WHERE {{ {_pattern(program)} {filters} }}"


def answers(program: Program, without: Iterable[str] = ()) -> str:
    """Return the query of `members`, limited to MAX_ANSWERS."""
    return f"{members(program, without)} LIMIT {MAX_ANSWERS}"


def predicates(program: Program, without: Iterable[str] = ()) -> str:
    """Return the query of all relations and attributes that a program's members have."""
    if isinstance(program, Entity):
        return f"SELECT DISTINCT ?r WHERE {{ {_iri(program.name)} ?r ?o . }}"
    return f"SELECT DISTINCT ?r WHERE {{ {{ {members(program, without)} }} ?x ?r ?o . }}"


def _pattern(program: Program, out: str = "x") -> str:
    """Return a group graph pattern that binds ?out; its other names are unique."""
    inner = "y" if out == "x" else "x"
    match program:
        case Join(relation, inverse, of):
            end, body = f"?{inner}", ""
            if isinstance(of, Entity):
                end = _iri(of.name)
            else:
                body = f"{_pattern(of, inner)} "
            triple = (end, f"?{out}") if inverse else (f"?{out}", end)
            body += f"{triple[0]} {_iri(relation)} {triple[1]} ."
        case And(left, right):
            body = f"{_pattern(left, out)} {_pattern(right, out)}"
        case Extreme():
            body = _extreme(program, out)
        case Entity(name):
            body = f"VALUES ?{out} {{ {_iri(name)} }}"
        case _:
            raise ProgramError("a number is no set of entities")
    return f"{{ SELECT DISTINCT ?{out} WHERE {{ {body} }} }}"


def _extreme(program: Extreme, out: str, filters: str = "") -> str:
    body = f"{_pattern(program.of, out)} ?{out} {_iri(program.attribute)} ?v ."
    order = "DESC(?v)" if program.largest else "?v"
    best = f"SELECT ?v WHERE {{ {body} {filters} }} ORDER BY {order} LIMIT 1"
    return f"{body} {{ {best} }}"


def _check(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ProgramError(f"{name[:40]!r} is no name")


def _iri(name: str) -> str:
    _check(name)
    return f"<{NAMESPACE}{name}>"
