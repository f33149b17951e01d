"""One game of ALFWorld, by the rules and in the words of its own PDDL and grammar.

    Setting(domain, problem, grammar) ─▶ Play ─▶ intro(), commands ─▶ do(command) ─▶ text, won

It plays as TextWorld does with Fast Downward under it: an action that would change nothing by its
own preconditions is not offered (walking to where one stands), one command stands for the first
action it names, and what holds of the goal holds of the moment.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agentrl.envs.tasks.alfworld.published import goal_progress, grammar, pddl
from agentrl.envs.tasks.alfworld.published.grammar import Grammar, Text, TextContext
from agentrl.envs.tasks.alfworld.published.pddl import And, Atom, Domain, Effect, Fact, Not, Problem
from agentrl.envs.tasks.alfworld.published.world_state import (
    Binding,
    Planner,
    Relation,
    Solver,
    World,
    has_solution,
)

NOTHING_HAPPENS = "Nothing happens."
ARTICLES = {"indefinite": "a", "definite": "the"}
INTRO = grammar.text("#intro#")


@dataclass(frozen=True, slots=True)
class Rule:
    """One action of this game.

    `idle`: each effect's atom and others; where each equals one of its others, nothing changes.
    `steady`: whether its command never changes.
    """

    names: tuple[str, ...]
    solver: Solver
    effects: tuple[tuple[Effect, Solver], ...]
    idle: tuple[tuple[Atom, tuple[Atom, ...]], ...]
    template: Text
    feedback: Text
    steady: bool


_domain = lru_cache(maxsize=4)(pddl.domain)
_grammar = lru_cache(maxsize=16)(grammar.parse)


@lru_cache(maxsize=16)
def read_setting(domain: str, problem: str, words: str) -> "Setting":
    """The setting of these texts; the episodes of a group share it. Raises MalformedPddl."""
    return Setting(_domain(domain), pddl.problem(problem), _grammar(words))


class Setting:
    """The immutable part that all plays of one game share. Raises MalformedPddl."""

    def __init__(self, rules: Domain, problem: Problem, words: Grammar) -> None:
        self._problem = problem
        self.grammar = words
        self._lineage = _lineages(rules, problem)
        self.names = _names(
            entity for rows in problem.facts.values() for row in rows for entity in row
        )
        self._changing = {e.atom.predicate for a in rules.actions.values() for e in a.effects}
        self._fixed = {
            name: Relation(rows)
            for name, rows in problem.facts.items()
            if name not in self._changing
        }
        members: dict[str, dict[str, None]] = {}
        for entity, line in self._lineage.items():
            for kind in line:
                members.setdefault(kind, {})[entity] = None
        self._planner = Planner(self.world(), members)
        self.goal = self._planner.solver(problem.goal, frozenset())
        self.goal_conditions = goal_progress.read_goal(problem.goal)
        self.rules = [
            self._rule(action, words.actions[name])
            for name, action in rules.actions.items()
            if name in words.actions
        ]

    def world(self) -> World:
        """Return a new world in its initial state."""
        facts = self._problem.facts
        return World(self._fixed, {name: facts.get(name, ()) for name in self._changing})

    def field(self, entity: str, name: str) -> str:
        """Return an entity's name, id or article."""
        if name == "name":
            return self.names.get(entity, entity)
        return entity if name == "id" else ARTICLES.get(name, "")

    def is_a(self, entity: str, kind: str) -> bool:
        return kind in self._lineage.get(entity, ())

    def _rule(self, action: pddl.Action, words: grammar.Wording) -> Rule:
        known = frozenset(parameter.name for parameter in action.parameters)
        effects = tuple(
            (effect, self._planner.solver(effect.condition, known, effect.variables))
            for effect in action.effects
        )
        told = {
            name.removeprefix("not_") for name in grammar.predicates(self.grammar, words.template)
        }
        return Rule(
            tuple(parameter.name for parameter in action.parameters),
            self._planner.solver(action.condition, frozenset(), action.parameters),
            effects,
            _idle(action),
            words.template,
            words.feedback,
            not told & self._changing,
        )


class Play:
    """One play of a game. `commands` maps each admissible command, sorted, to what it does."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._world = setting.world()
        self._stage = TextContext(self._world, setting.field, setting.is_a)
        self._texts: dict[tuple[int, Fact], str] = {}
        self.won = False
        self._look_around()

    @property
    def progress(self) -> float | None:
        """Return which share of the task is done, 0 to 1; None for a goal of another form."""
        if self.won:
            return 1.0
        conditions = self._setting.goal_conditions
        return goal_progress.progress(conditions, self._world) if conditions else None

    def intro(self) -> str:
        return self._tell(INTRO, {})

    def do(self, command: str) -> str:
        """Apply a command and return the game's text; an unknown command changes nothing."""
        if command not in self.commands:
            return NOTHING_HAPPENS
        number, entities = self.commands[command]
        rule = self._setting.rules[number]
        binding = dict(zip(rule.names, entities, strict=True))
        changes = list(self._changes(rule, binding))
        gained = {change[:2] for change in changes if change[2]}
        for predicate, row, true in changes:
            if true or (predicate, row) not in gained:
                self._world.make(predicate, row, true)
        told = self._tell(rule.feedback, _bind_names(rule.names, entities))
        self._look_around()
        return told

    def _changes(self, rule: Rule, binding: Binding) -> Iterator[tuple[str, Fact, bool]]:
        """Yield a rule's changes; the caller collects all before it applies any."""
        for effect, solver in rule.effects:
            inside = dict(binding)
            for _ in solver(self._world, inside):
                yield effect.atom.predicate, _ground(effect.atom, inside), effect.adds

    def _look_around(self) -> None:
        commands: dict[str, tuple[int, Fact]] = {}
        for number, rule in enumerate(self._setting.rules):
            binding: Binding = {}
            seen = set()
            for _ in rule.solver(self._world, binding):
                entities = tuple([binding[name] for name in rule.names])
                if entities not in seen and not _changes_nothing(rule, binding):
                    seen.add(entities)
                    commands.setdefault(self._command(number, rule, entities), (number, entities))
        self.commands: Mapping[str, tuple[int, Fact]] = dict(sorted(commands.items()))
        self.won = has_solution(self._setting.goal, self._world, {})

    def _command(self, number: int, rule: Rule, entities: Fact) -> str:
        if not rule.steady:
            return self._tell(rule.template, _bind_names(rule.names, entities))
        key = (number, entities)
        if key not in self._texts:
            self._texts[key] = self._tell(rule.template, _bind_names(rule.names, entities))
        return self._texts[key]

    def _tell(self, text: Text, binding: Binding) -> str:
        return grammar.tell(self._setting.grammar, text, binding, self._stage)


def _bind_names(names: Sequence[str], entities: Sequence[str]) -> Binding:
    """Strip the question mark of variables, as grammars name them without it."""
    return {name[1:]: entity for name, entity in zip(names, entities, strict=True)}


def _ground(atom: Atom, binding: Binding) -> Fact:
    return tuple([binding.get(term, term) for term in atom.terms])


def _changes_nothing(rule: Rule, binding: Binding) -> bool:
    return bool(rule.idle) and all(
        any(_ground(atom, binding) == _ground(other, binding) for other in others)
        for atom, others in rule.idle
    )


def _idle(action: pddl.Action) -> tuple[tuple[Atom, tuple[Atom, ...]], ...]:
    """Each effect's atom with those that make it none: of preconditions that say the same and, for
    what is lost, of what is gained. Empty where some effect always is one."""
    parts = action.condition.parts if isinstance(action.condition, And) else (action.condition,)
    true = [part for part in parts if isinstance(part, Atom)]
    false = [part.part for part in parts if isinstance(part, Not) and isinstance(part.part, Atom)]
    gained = [effect.atom for effect in action.effects if effect.adds]
    found = []
    for effect in action.effects:
        known = true if effect.adds else false + gained
        others = tuple(atom for atom in known if atom.predicate == effect.atom.predicate)
        if not others or effect.variables or effect.condition != And(()):
            return ()
        found.append((effect.atom, others))
    return tuple(found)


def _lineages(rules: Domain, problem: Problem) -> dict[str, tuple[str, ...]]:
    objects = {**rules.constants, **problem.objects}
    lines = {kind: rules.lineage(kind) for kind in set(objects.values())}
    return {name: lines[kind] for name, kind in objects.items()}


def _names(entities: Iterator[str]) -> dict[str, str]:
    """ALFWorld's: `mug_bar__plus_02…` is `mug 2` if two mugs are left from it on, sorted."""
    kinds = {entity: _kind(entity) for entity in sorted(set(entities))}
    left = Counter(kinds.values())
    names: dict[str, str] = {}
    for entity, kind in kinds.items():
        names[entity] = f"{kind} {left[kind]}" if kind else f"{entity} "
        left[kind] -= 1
    return names


def _kind(entity: str) -> str:
    kind, bar, _ = entity.partition("_bar_")
    if not bar:
        return ""
    return f"{kind}basin" if "basin" in entity else kind
