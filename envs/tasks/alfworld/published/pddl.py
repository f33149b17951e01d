"""PDDL, as far as a household needs it: typed objects, facts, actions, conditions, effects, a goal.

The subset is ADL without numbers: `and or not imply exists forall =`, `when`; costs are left out.
Names are folded to lower case, as PDDL has it. Everything malformed is a `MalformedPddl`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

ROOT = "object"  # the type of everything
TOKENS = re.compile(r";[^\n]*|[()]|[^\s();]+")

Form: TypeAlias = "str | list[Form]"
Fact = tuple[str, ...]  # of a predicate: its arguments


class MalformedPddl(ValueError):
    """The text of a domain, a problem or a grammar is not what it should be."""


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Atom:
    """`terms`: variables begin with a question mark, all else are objects."""

    predicate: str
    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: "Condition"


@dataclass(frozen=True, slots=True)
class And:
    parts: "tuple[Condition, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    parts: "tuple[Condition, ...]"


@dataclass(frozen=True, slots=True)
class Exists:
    variables: tuple[Variable, ...]
    part: "Condition"


Condition: TypeAlias = Atom | Not | And | Or | Exists


@dataclass(frozen=True, slots=True)
class Effect:
    """`atom` becomes true or, unless `adds`, false; for all `variables` where `condition` holds."""

    adds: bool
    atom: Atom
    variables: tuple[Variable, ...] = ()
    condition: Condition = And(())


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    parameters: tuple[Variable, ...]
    condition: Condition
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """`types`: each type's parent; `constants`: objects of every problem, with their types."""

    types: Mapping[str, str]
    constants: Mapping[str, str]
    actions: Mapping[str, Action]

    def lineage(self, kind: str) -> tuple[str, ...]:
        """Return the type of an object and its ancestors, the root last. Raises MalformedPddl.

        A variable may be of a type that no object has: it then stands for none. (ALFWorld's domain
        has one, by a comma too many, and plays by it.)
        """
        line = [kind]
        while line[-1] != ROOT:
            parent = self.types.get(line[-1])
            if parent is None or parent in line:
                raise MalformedPddl(f"unknown type {line[-1]}")
            line.append(parent)
        return tuple(line)


@dataclass(frozen=True, slots=True)
class Problem:
    """`objects`: with their types. `facts`: what holds at first, by predicate, in order."""

    objects: Mapping[str, str]
    facts: Mapping[str, tuple[Fact, ...]]
    goal: Condition


def domain(text: str) -> Domain:
    """Parse the text of a domain. Raises MalformedPddl."""
    types: dict[str, str] = {}
    constants: dict[str, str] = {}
    actions: dict[str, Action] = {}
    for head, *rest in _sections(text, "domain"):
        if head == ":types":
            types |= _read_typed(rest)
        elif head == ":constants":
            constants |= _read_typed(rest)
        elif head == ":action":
            action = _action(rest)
            actions[action.name] = action
    types.pop(ROOT, None)
    return Domain(types, constants, actions)


def problem(text: str) -> Problem:
    """Parse the text of a problem. Raises MalformedPddl."""
    objects: dict[str, str] = {}
    facts: dict[str, dict[Fact, None]] = {}
    goal: Condition | None = None
    for head, *rest in _sections(text, "problem"):
        if head == ":objects":
            objects |= _read_typed(rest)
        elif head == ":init":
            for form in rest:
                if isinstance(form, list) and form[:1] != ["="]:
                    predicate, *terms = _words(form)
                    facts.setdefault(predicate, {})[tuple(terms)] = None
        elif head == ":goal":
            goal = _condition(rest[0] if rest else [])
    if goal is None:
        raise MalformedPddl("the problem has no goal")
    return Problem(objects, {name: tuple(rows) for name, rows in facts.items()}, goal)


def free(condition: Condition) -> frozenset[str]:
    """Return the variables of a condition that no quantifier in it binds."""
    match condition:
        case Atom(_, terms):
            return frozenset(term for term in terms if term.startswith("?"))
        case Not(part):
            return free(part)
        case And(parts) | Or(parts):
            return frozenset().union(*map(free, parts))
        case Exists(variables, part):
            return free(part) - {variable.name for variable in variables}


def _sections(text: str, kind: str) -> Iterator[list[Form]]:
    match _read(text):
        case ["define", [str(found), str()], *sections] if found == kind:
            for section in sections:
                if not isinstance(section, list) or not section:
                    raise MalformedPddl(f"a section of the {kind} is {section!r}")
                yield section
        case _:
            raise MalformedPddl(f"no (define ({kind} …) …)")


def _read(text: str) -> Form:
    """Parse the one s-expression of a text."""
    stack: list[list[Form]] = [[]]
    for word in TOKENS.findall(text.lower()):
        if word == "(":
            stack.append([])
        elif word == ")":
            form = stack.pop()
            if not stack:
                raise MalformedPddl("a ) too many")
            stack[-1].append(form)
        elif word[0] != ";":
            stack[-1].append(word)
    if len(stack) > 1:
        raise MalformedPddl(f"{len(stack) - 1} ) missing")
    if len(stack[0]) != 1:
        raise MalformedPddl(f"{len(stack[0])} forms where one is due")
    return stack[0][0]


def _words(form: Form) -> list[str]:
    if not isinstance(form, list) or not form or not all(isinstance(each, str) for each in form):
        raise MalformedPddl(f"not a list of names: {str(form)[:80]}")
    return cast(list[str], form)


def _read_typed(forms: list[Form]) -> dict[str, str]:
    """Names with the type that follows them after a dash; the root where none does."""
    names: dict[str, str] = {}
    waiting: list[str] = []
    words = iter(_words(forms) if forms else [])
    for word in words:
        if word == "-":
            kind = next(words, ROOT)
            names |= dict.fromkeys(waiting, kind)
            waiting = []
        else:
            waiting.append(word)
    return names | dict.fromkeys(waiting, ROOT)


def _variables(form: Form) -> tuple[Variable, ...]:
    if not isinstance(form, list):
        raise MalformedPddl(f"not a list of variables: {form}")
    return tuple(Variable(name, kind) for name, kind in _read_typed(form).items())


def _action(forms: list[Form]) -> Action:
    if len(forms) % 2 == 0 or not isinstance(forms[0], str):
        raise MalformedPddl(f"not an action: {str(forms)[:80]}")
    parts = {str(key): value for key, value in zip(forms[1::2], forms[2::2], strict=True)}
    return Action(
        forms[0],
        _variables(parts.get(":parameters", [])),
        _condition(parts.get(":precondition", [])),
        tuple(_effects(parts.get(":effect", []), (), And(()))),
    )


def _condition(form: Form) -> Condition:
    condition: Condition
    match form:
        case [] | ["and"]:
            condition = And(())
        case ["and" | "or" as word, *parts]:
            each = tuple(_condition(part) for part in parts)
            condition = And(each) if word == "and" else Or(each)
        case ["not", part]:
            condition = Not(_condition(part))
        case ["imply", given, then]:
            condition = Or((Not(_condition(given)), _condition(then)))
        case ["exists", variables, part]:
            condition = Exists(_variables(variables), _condition(part))
        case ["forall", variables, part]:
            condition = Not(Exists(_variables(variables), Not(_condition(part))))
        case _:
            condition = _atom(form)
    return condition


def _atom(form: Form) -> Atom:
    predicate, *terms = _words(form)
    return Atom(predicate, tuple(terms))


def _effects(form: Form, variables: tuple[Variable, ...], condition: Condition) -> Iterator[Effect]:
    match form:
        case [] | ["increase", *_]:
            return
        case ["and", *parts]:
            for part in parts:
                yield from _effects(part, variables, condition)
        case ["forall", more, part]:
            yield from _effects(part, variables + _variables(more), condition)
        case ["when", given, part]:
            yield from _effects(part, variables, And((condition, _condition(given))))
        case ["not", part]:
            yield Effect(False, _atom(part), variables, condition)
        case _:
            yield Effect(True, _atom(form), variables, condition)
