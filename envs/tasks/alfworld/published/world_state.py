"""The facts of a household, indexed, and a solver for conditions.

    facts of a problem ─▶ World ◀─ changed by effects
    condition ─▶ Planner.solver(condition) ─▶ solver(world, binding): once for every way it holds

A binding maps variables to objects. A solver writes the variables that it finds into it, so what it
found is to be read before it is resumed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentrl.envs.tasks.alfworld.published.pddl import (
    And,
    Atom,
    Condition,
    Exists,
    Fact,
    MalformedPddl,
    Not,
    Or,
    Variable,
    free,
)

Binding = dict[str, str]


class Relation:
    """The facts of one predicate, in order and indexed by the object at each place."""

    __slots__ = ("by", "rows")

    def __init__(self, rows: Iterable[Fact] = ()) -> None:
        self.rows: dict[Fact, None] = {}
        self.by: list[dict[str, dict[Fact, None]]] = []
        for row in rows:
            self.add(row)

    def add(self, row: Fact) -> None:
        self.rows[row] = None
        while len(self.by) < len(row):
            self.by.append({})
        for place, value in enumerate(row):
            self.by[place].setdefault(value, {})[row] = None

    def discard(self, row: Fact) -> None:
        if row in self.rows:
            del self.rows[row]
            for place, value in enumerate(row):
                del self.by[place][value][row]

    def at(self, place: int, value: str) -> Iterable[Fact]:
        """Return the facts with this object at this place."""
        return self.by[place].get(value, ()) if place < len(self.by) else ()

    def estimate(self, known: Sequence[int]) -> float:
        """Estimate how many facts remain once the `known` places are bound."""
        most = max((len(self.by[place]) for place in known if place < len(self.by)), default=1)
        return len(self.rows) / max(1, most)


NOTHING = Relation()


class World:
    """Facts by predicate. A fact that an effect made false is kept as `not_<predicate>`."""

    __slots__ = ("_fixed", "_fluent")

    def __init__(self, fixed: Mapping[str, Relation], facts: Mapping[str, Iterable[Fact]]) -> None:
        """`fixed`: what no effect changes, shared between worlds; `facts`: what some may."""
        self._fixed = fixed
        self._fluent = {name: Relation(rows) for name, rows in facts.items()}

    def __getitem__(self, predicate: str) -> Relation:
        return self._fluent.get(predicate) or self._fixed.get(predicate) or NOTHING

    def make(self, predicate: str, row: Fact, holds: bool) -> None:
        true, false = predicate, f"not_{predicate}"
        gain, lose = (true, false) if holds else (false, true)
        self._fluent.setdefault(gain, Relation()).add(row)
        self._fluent.setdefault(lose, Relation()).discard(row)


Solver = Callable[[World, Binding], Iterator[None]]
Objects = Mapping[str, None]


@dataclass(frozen=True, slots=True)
class Planner:
    """Compiles conditions into solvers, ordered for the world that it is made for.

    `world`: to estimate by. `members`: the objects of each type, those of its subtypes included.
    Variables that are bound outside are `known`; they are of their types already.
    """

    world: World
    members: Mapping[str, Objects]

    def solver(
        self, condition: Condition, known: frozenset[str], variables: Sequence[Variable] = ()
    ) -> Solver:
        """Compile a condition; the solver binds all of `variables`. Raises MalformedPddl."""
        types = {each.name: self.members.get(each.type, {}) for each in variables}
        return self._all((condition, *map(_Any, variables)), known, types)

    def _all(self, parts: "Sequence[_Part]", known: frozenset[str], types: "_Types") -> Solver:
        """Join the parts, the one with the fewest answers first."""
        waiting = list(_flat(parts))
        solvers: list[Solver] = []
        while waiting:
            cost, place = min((self._cost(part, known), at) for at, part in enumerate(waiting))
            part = waiting.pop(place)
            if cost == UNBOUND:
                raise MalformedPddl(
                    f"nothing binds {', '.join(sorted(_named_variables(part) - known))}"
                )
            if not isinstance(part, _Any) or part.variable.name not in known:
                solvers.append(self._one(part, known, types))
            known |= _named_variables(part)
        return solvers[0] if len(solvers) == 1 else _JoinedSolver(tuple(solvers))

    def _cost(self, part: "_Part", known: frozenset[str]) -> float:
        unknown = _named_variables(part) - known
        if not unknown:
            return 0.0
        match part:
            case Atom(predicate, terms) if predicate != "=":
                return self.world[predicate].estimate(
                    [place for place, term in enumerate(terms) if term not in unknown]
                )
            case _Any(variable):
                return LAST + len(self.members.get(variable.type, ()))
            case _:
                return LAST / 2 if unknown <= _bound_variables(part) else UNBOUND

    def _one(self, part: "_Part", known: frozenset[str], types: "_Types") -> Solver:
        solver: Solver
        match part:
            case _Any(variable):
                solver = _each(variable.name, types[variable.name])
            case Atom("=", (left, right)):
                solver = _equal(left, right)
            case Atom(predicate, terms):
                solver = _facts(predicate, terms, known, types)
            case Not(inner):
                solver = _unless(self._all((inner,), known, types))
            case Or(parts):
                solver = _either(tuple(self._all((each,), known, types) for each in parts))
            case And(parts):
                solver = self._all(parts, known, types)
            case Exists(variables, inner):
                outer = known - {variable.name for variable in variables}
                hidden = {each.name: self.members.get(each.type, {}) for each in variables}
                within = self._all((inner, *map(_Any, variables)), outer, {**types, **hidden})
                solver = _some(within, tuple(free(part) - known))
        return solver


LAST, UNBOUND = 1e6, 1e9  # costs: of what waits for all else, of what cannot come next


@dataclass(frozen=True, slots=True)
class _Any:
    """The condition that a variable stands for an object of its type."""

    variable: Variable


_Part = Condition | _Any
_Types = Mapping[str, Objects]


def _named_variables(part: _Part) -> frozenset[str]:
    return frozenset([part.variable.name]) if isinstance(part, _Any) else free(part)


def _bound_variables(part: _Part) -> frozenset[str]:
    """Return the variables that solving a condition binds."""
    match part:
        case Atom(predicate, _) if predicate != "=":
            return free(part)
        case And(parts):
            return frozenset().union(*map(_bound_variables, parts))
        case Or(parts):
            return frozenset.intersection(*map(_bound_variables, parts)) if parts else frozenset()
        case Exists(variables, inner):
            return _bound_variables(inner) - {variable.name for variable in variables}
        case _:
            return frozenset()


def _flat(parts: Sequence[_Part]) -> Iterator[_Part]:
    for part in parts:
        if isinstance(part, And):
            yield from _flat(part.parts)
        else:
            yield part


@dataclass(frozen=True, slots=True)
class _JoinedSolver:
    """Runs solvers in turn; each gets the bindings of those before it."""

    solvers: tuple[Solver, ...]

    def __call__(self, world: World, binding: Binding) -> Iterator[None]:
        return self._search(world, binding, 0)

    def _search(self, world: World, binding: Binding, place: int) -> Iterator[None]:
        if place == len(self.solvers):
            yield
            return
        for _ in self.solvers[place](world, binding):
            yield from self._search(world, binding, place + 1)


def _either(solvers: tuple[Solver, ...]) -> Solver:
    def either(world: World, binding: Binding) -> Iterator[None]:
        for solver in solvers:
            yield from solver(world, binding)

    return either


def _unless(solver: Solver) -> Solver:
    def unless(world: World, binding: Binding) -> Iterator[None]:
        if not has_solution(solver, world, binding):
            yield

    return unless


def _some(solver: Solver, names: tuple[str, ...]) -> Solver:
    def some(world: World, binding: Binding) -> Iterator[None]:
        inside = dict(binding)
        for _ in solver(world, inside):
            for name in names:
                binding[name] = inside[name]
            yield
            if not names:
                return

    return some


def _equal(left: str, right: str) -> Solver:
    def equal(_world: World, binding: Binding) -> Iterator[None]:
        if binding.get(left, left) == binding.get(right, right):
            yield

    return equal


def _each(name: str, objects: Objects) -> Solver:
    def each(_world: World, binding: Binding) -> Iterator[None]:
        for thing in objects:
            binding[name] = thing
            yield

    return each


def _facts(predicate: str, terms: tuple[str, ...], known: frozenset[str], types: _Types) -> Solver:
    bound = [p for p, term in enumerate(terms) if not term.startswith("?") or term in known]
    free = [(p, terms[p], types.get(terms[p], {})) for p in range(len(terms)) if p not in bound]
    repeated = len({name for _, name, _ in free}) < len(free)

    def test(world: World, binding: Binding) -> Iterator[None]:
        if tuple([binding.get(term, term) for term in terms]) in world[predicate].rows:
            yield

    def search(world: World, binding: Binding) -> Iterator[None]:
        relation = world[predicate]
        keys = [(place, binding.get(terms[place], terms[place])) for place in bound]
        for row in relation.at(*keys[0]) if keys else relation.rows:
            for place, value in keys[1:]:
                if row[place] != value:
                    break
            else:
                for place, name, objects in free:
                    if row[place] not in objects:
                        break
                    binding[name] = row[place]
                else:
                    if not repeated or all(binding[name] == row[p] for p, name, _ in free):
                        yield

    return search if free else test


def has_solution(solver: Solver, world: World, binding: Binding) -> bool:
    """Return whether there is any answer."""
    return any(True for _ in solver(world, binding))
