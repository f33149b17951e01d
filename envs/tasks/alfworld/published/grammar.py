"""The text grammar of a game: for each action the command that does it and what is told of it.

    grammar :: \"\"\" {"rule": [{"condition": query, "rhs": text}, …], …} \"\"\";
    action Name { template :: "text"; feedback :: "text"; grammar :: \"\"\" … \"\"\"; }

In a text, `#rule#` is replaced by the first of the rule's texts whose condition holds, `{o.name}`
by what is known of an entity, and `[{text | query}]` by a list of the text for every answer to the
query. A query is a conjunction of facts, `holds(a:agent, o:object) & …`; its variables stand for
different entities, its answers are sorted, and `not_<fact>` holds once an action made it false.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentrl.envs.tasks.alfworld.published.pddl import MalformedPddl, Variable
from agentrl.envs.tasks.alfworld.published.world_state import Binding, World

PART = re.compile(
    r"\[\{(?P<listed>[^{}|]*)(?:\|(?P<of>[^{}\[\]]*))?\}\]"
    r"|\{(?P<shown>[^{}|]*)(?:\|(?P<given>[^{}\[\]]*))?\}"
    r"|\#(?P<rule>[^#]+)\#"
    r"|(?P<plain>[^\[\]{}#\"<>|;]+)"
)
TERM = re.compile(r"\s*(?:'(?P<text>[^']*)'|(?P<name>\w+)(?:\.(?P<field>\w+))?)\s*")
FACT = re.compile(r"\s*(?P<predicate>[\w-]+)\(\s*(?P<terms>[^()]*)\)\s*")
BLOCK = re.compile(r'\s*grammar\s*::\s*"""(.*?)"""\s*;', re.S)
ACTION = re.compile(r"\s*action\s+([\w/-]+)\s*\{", re.S)
ENTRY = re.compile(
    r'\s*(template|feedback|pddl|grammar)\s*::\s*(?:"""(.*?)"""|"([^"]*)")\s*;', re.S
)
END = re.compile(r"\s*\}")
EMPTY, COMMA, AND = "list_empty", "list_separator", "list_last_separator"


@dataclass(frozen=True, slots=True)
class Query:
    """Facts to look up. `facts`: predicates with the variables of their arguments."""

    facts: tuple[tuple[str, tuple[Variable, ...]], ...]


@dataclass(frozen=True, slots=True)
class Plain:
    text: str


@dataclass(frozen=True, slots=True)
class Use:
    """A reference to the text of a rule."""

    rule: str


@dataclass(frozen=True, slots=True)
class Value:
    """The first of `choices` that is not empty; each a sum of literals and (variable, field)."""

    choices: tuple[tuple[str | tuple[str, str], ...], ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`part` for every answer of `query`, or once; as a list in words where `listed`."""

    part: Use | Value
    query: Query | None
    listed: bool


Text = tuple[Plain | Use | Value | Repeat, ...]


@dataclass(frozen=True, slots=True)
class Wording:
    """The command of an action, and the text shown after it."""

    template: Text
    feedback: Text


@dataclass(frozen=True, slots=True)
class Grammar:
    """`rules`: each a list of conditions and texts. `actions`: by name in lower case."""

    rules: Mapping[str, tuple[tuple[Query | None, Text], ...]]
    actions: Mapping[str, Wording]


@dataclass(frozen=True, slots=True)
class TextContext:
    """The entities that texts mention: `field(entity, name)`, `is_a(entity, type)`."""

    world: World
    field: Callable[[str, str], str]
    is_a: Callable[[str, str], bool]


def parse(source: str) -> Grammar:
    """Parse a grammar. Raises MalformedPddl."""
    rules: dict[str, tuple[tuple[Query | None, Text], ...]] = {}
    actions: dict[str, Wording] = {}
    at = 0
    while source[at:].strip():
        if match := BLOCK.match(source, at):
            rules |= _rules(match[1])
            at = match.end()
        elif match := ACTION.match(source, at):
            entries, at = _entries(source, match.end())
            rules |= _rules(entries.get("grammar", "{}"))
            if not {"template", "feedback"} <= set(entries):
                raise MalformedPddl(f"action {match[1]} has no template or no feedback")
            wording = Wording(text(entries["template"]), text(entries["feedback"]))
            actions[match[1].lower()] = wording
        else:
            raise MalformedPddl(
                f"neither a grammar nor an action: {source[at : at + 60].strip()!r}"
            )
    return Grammar(rules, actions)


def text(source: str) -> Text:
    """A text with its marks read. White space before it does not count, nor what follows a stray
    bracket, as TextWorld reads it. Raises MalformedPddl."""
    parts: list[Plain | Use | Value | Repeat] = []
    source = source.lstrip()
    at = 0
    while match := PART.match(source, at):
        at = match.end()
        if (rule := match["rule"]) is not None:
            parts.append(Use(rule))
        elif (plain := match["plain"]) is not None:
            parts.append(Plain(plain))
        elif (listed := match["listed"]) is not None:
            parts.append(Repeat(_shown(listed), _query(match["of"]), listed=True))
        else:
            parts.append(Repeat(_shown(match["shown"]), _query(match["given"]), listed=False))
    return tuple(parts)


def tell(grammar: Grammar, template: Text, binding: Binding, stage: TextContext) -> str:
    """Render a text in a world. Raises MalformedPddl for a missing rule or entity."""
    return "".join(_words(grammar, template, binding, stage))


def predicates(
    grammar: Grammar, template: Text, seen: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return the predicates whose facts change a text's words."""
    names: set[str] = set()
    for part in template:
        query = part.query if isinstance(part, Repeat) else None
        names |= {predicate for predicate, _ in query.facts} if query else set()
        inner = part.part if isinstance(part, Repeat) else part
        if isinstance(inner, Use) and inner.rule not in seen:
            for condition, rhs in grammar.rules.get(inner.rule, ()):
                names |= {predicate for predicate, _ in condition.facts} if condition else set()
                names |= predicates(grammar, rhs, seen | {inner.rule})
    return frozenset(names)


def answers(
    query: Query, binding: Binding, stage: TextContext, place: int = 0
) -> Iterator[Binding]:
    """Every way the query's facts from `place` on hold, sorted; different variables are different
    entities."""
    if place == len(query.facts):
        yield binding
        return
    predicate, variables = query.facts[place]
    relation = stage.world[predicate]
    known = [(p, binding[v.name]) for p, v in enumerate(variables) if v.name in binding]
    for row in sorted(relation.at(*known[0]) if known else relation.rows):
        if (more := _unify(variables, row, binding, stage)) is not None:
            yield from answers(query, more, stage, place + 1)


def _unify(
    variables: Sequence[Variable], row: Sequence[str], bound: Binding, stage: TextContext
) -> Binding | None:
    more = dict(bound)
    if len(variables) != len(row):
        return None
    for variable, entity in zip(variables, row, strict=True):
        if variable.name not in more:
            if entity in more.values() or not stage.is_a(entity, variable.type):
                return None
            more[variable.name] = entity
        elif more[variable.name] != entity:
            return None
    return more


def _words(grammar: Grammar, template: Text, binding: Binding, stage: TextContext) -> Iterator[str]:
    for part in template:
        match part:
            case Plain(words):
                yield words
            case Use(rule):
                yield _used(grammar, rule, binding, stage)
            case Value(choices):
                yield _valued(choices, binding, stage)
            case Repeat(inner, query, listed):
                bindings = [binding] if query is None else answers(query, binding, stage)
                items = [tell(grammar, (inner,), bound, stage) for bound in bindings]
                yield _list(grammar, items, stage) if listed else "".join(items)


def _used(grammar: Grammar, rule: str, binding: Binding, stage: TextContext) -> str:
    for condition, rhs in grammar.rules.get(rule, ()):
        if condition is None or any(True for _ in answers(condition, binding, stage)):
            return tell(grammar, rhs, binding, stage)
    raise MalformedPddl(f"the grammar has nothing to say for #{rule}#")


def _valued(
    choices: tuple[tuple[str | tuple[str, str], ...], ...], binding: Binding, stage: TextContext
) -> str:
    for terms in choices:
        words = ""
        for term in terms:
            if isinstance(term, str):
                words += term
            elif term[0] in binding:
                words += stage.field(binding[term[0]], term[1])
            else:
                raise MalformedPddl(f"the grammar speaks of {term[0]}, which is not there")
        if words:
            return words
    return ""


def _list(grammar: Grammar, items: Sequence[str], stage: TextContext) -> str:
    if not items:
        return _used(grammar, EMPTY, {}, stage)
    if len(items) == 1:
        return items[0]
    comma, last = (_used(grammar, rule, {}, stage) for rule in (COMMA, AND))
    return f"{comma.join(items[:-1])}{last}{items[-1]}"


def _entries(source: str, at: int) -> tuple[dict[str, str], int]:
    entries: dict[str, str] = {}
    while match := ENTRY.match(source, at):
        entries[match[1]] = match[3] if match[2] is None else match[2]
        at = match.end()
    end = END.match(source, at)
    if not end:
        raise MalformedPddl(f"an action does not end: {source[at : at + 60].strip()!r}")
    return entries, end.end()


def _rules(source: str) -> dict[str, tuple[tuple[Query | None, Text], ...]]:
    try:
        rules = json.loads(source)
        return {
            name: tuple((_query(one.get("condition")), text(one["rhs"])) for one in options)
            for name, options in rules.items()
        }
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise MalformedPddl(f"a block of the grammar: {error}") from error


def _shown(source: str) -> Use | Value:
    if match := re.fullmatch(r"\s*#([^#]+)#\s*", source):
        return Use(match[1])
    return Value(tuple(_sum(choice) for choice in re.split(r"\sor\s", source)))


def _sum(source: str) -> tuple[str | tuple[str, str], ...]:
    terms: list[str | tuple[str, str]] = []
    at = 0
    while match := TERM.match(source, at):
        terms.append(
            match["text"] if match["name"] is None else (match["name"], match["field"] or "name")
        )
        at = match.end()
        if at == len(source):
            return tuple(terms)
        if source[at] != "+":
            break
        at += 1
    raise MalformedPddl(f"not a value: {source!r}")


def _query(source: str | None) -> Query | None:
    if not source or not source.strip():
        return None
    facts: list[tuple[str, tuple[Variable, ...]]] = []
    for part in source.split("&"):
        match = FACT.fullmatch(part)
        if not match:
            raise MalformedPddl(f"not a fact: {part!r}")
        terms = [term.split(":") for term in match["terms"].split(",") if term.strip()]
        variables = [Variable(term[0].strip(), term[-1].strip()) for term in terms]
        facts.append((match["predicate"].lower(), tuple(variables)))
    return Query(tuple(facts))
