"""Questions over any graph: a program found by walking it, its words, its tool calls, its answers.

A question is kept only where its tool calls, under the strict rules, give what the program gives
without them, and where none of its parts alone would do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from agentrl.envs.tasks.kg.graph import LocalGraph
from agentrl.envs.tasks.kg.problem import Ontology, Problem
from agentrl.envs.tasks.kg.program import (
    And,
    Count,
    Entity,
    Extreme,
    Join,
    Program,
    answers,
    entities,
    parts,
)
from agentrl.envs.tasks.kg.tools import ToolError, Workbench
from agentrl.envs.tasks.options import Difficulty

MAX_ANSWERS = 20
MAX_BETWEEN = 200  # members of a set on the way
SHORT = 3  # hops; a shorter path is not found by chance:
MIN_CHOICES = 3  # relations lead on from each of its steps
TRIES = 8  # of one step, before the walk is given up

SHAPES: Mapping[Difficulty, tuple[str, ...]] = {
    "easy": ("path 1", "path 2", "path 2"),
    "medium": ("path 2", "both 1 1", "both 1 2"),
    "hard": ("path 3", "both 2 1", "most 1", "most both", "count 2", "count both", "path 4"),
}


@dataclass(frozen=True, slots=True)
class Walker:
    """Draws questions over one graph. `starts`: entities they may be about; `label`: a word for a
    relation or an attribute; `name`: of an entity."""

    graph: LocalGraph
    ontology: Ontology
    starts: Sequence[str]
    label: Callable[[str], str]
    name: Callable[[str], str]

    def shapes(self, difficulty: Difficulty) -> tuple[str, ...]:
        """Return the kinds of questions that the graph allows."""
        shapes = SHAPES[difficulty]
        return tuple(s for s in shapes if self.ontology.attributes or not s.startswith("most"))

    def draw(self, random: Random, shape: str) -> Program | None:
        """Draw a program of this shape, or None if the walk ends without one."""
        kind, *rest = shape.split()
        if kind == "path":
            hops = int(rest[0])
            return self._path(random, hops, choices=MIN_CHOICES if hops < SHORT else 1)
        if kind == "both":
            return self._both(random, int(rest[0]), int(rest[1]))
        inner = self._both(random, 1, 1) if rest == ["both"] else self._path(random, int(rest[0]))
        if inner is None:
            return None
        return Count(inner) if kind == "count" else self._most(random, inner)

    def members(self, program: Program) -> list[str]:
        """Compute members edge by edge, to compare with SPARQL's."""
        match program:
            case Entity(name):
                return [name]
            case Join(relation, True, of):
                reached = [self.graph.objects(each, relation) for each in self.members(of)]
                return sorted({end for ends in reached for end in ends})
            case And(left, right):
                return sorted({*self.members(left)} & {*self.members(right)})
            case Count(of):
                return [str(len(self.members(of)))]
            case _:
                return sorted(self.graph.select(answers(program)))

    def _path(self, random: Random, hops: int, choices: int = 1) -> Program | None:
        program: Program = Entity(random.choice(self.starts))
        for _ in range(hops):
            relations = self.graph.relations(random.choice(self.members(program)))
            known = [relation for relation in relations if relation in self.ontology.relations]
            if len(known) < choices:
                return None
            program = Join(random.choice(known), inverse=True, of=program)
            if not 0 < len(self.members(program)) <= MAX_BETWEEN:
                return None
        return program

    def _both(self, random: Random, left_hops: int, right_hops: int) -> Program | None:
        """Draw two paths to one type that share some, not all, members of the first."""
        left = self._path(random, left_hops)
        members = self.members(left) if left else []
        if left is None or len(members) < 2:
            return None
        for _ in range(TRIES):
            right = self._backward(random, random.choice(members), right_hops)
            if right is None or self._type(right) != self._type(left):
                continue
            if 0 < len({*members} & {*self.members(right)}) < len(members):
                return And(left, right)
        return None

    def _backward(self, random: Random, member: str, hops: int) -> Program | None:
        """Draw a path of `hops` that leads to `member`."""
        relations: list[str] = []
        for _ in range(hops):
            known = self.ontology.relations
            sources = [each for each in self.graph.sources(member) if each[1] in known]
            if not sources:
                return None
            member, relation = random.choice(sources)
            relations.insert(0, relation)
        program: Program = Entity(member)
        for relation in relations:
            program = Join(relation, inverse=True, of=program)
        return program

    def _most(self, random: Random, inner: Program) -> Program | None:
        """Draw an extreme with exactly one member, or None if members share no attribute."""
        members = self.members(inner)
        shown = [{*self.graph.relations(each)} & self.ontology.attributes for each in members]
        shared = sorted(set.intersection(*shown))
        if len(members) < 2 or not shared:
            return None
        program = Extreme(inner, random.choice(shared), largest=random.random() < 0.5)
        return program if len(self.members(program)) == 1 else None

    def _type(self, program: Program) -> str:
        return self.ontology.range_of(program.relation) if isinstance(program, Join) else ""

    def words(self, program: Program, article: str = "") -> str:
        """Describe a program as a phrase, with `article` before each nested set."""
        match program:
            case Entity(name):
                return self.name(name)
            case Join(relation, _, Entity(name)):
                return f"{self.label(relation)} of {self.name(name)}"
            case Join(relation, _, of):
                return f"{self.label(relation)} of {article}{self.words(of, article)}"
            case And(left, right):
                return f"{self.words(left, article)} and {article}{self.words(right, article)}"
            case Extreme(of, attribute, _):
                return f"{_degree(program)} {self.label(attribute)} of {self.words(of, article)}"
            case Count(of):
                return f"how many {self.words(of, article)}"

    def question(self, program: Program) -> str:
        """Return the question in full."""
        match program:
            case Count(of):
                return f"How many are the {self.words(of, 'the ')}?"
            case Extreme(of, attribute, _):
                most = f"{_degree(program)} {self.label(attribute)}"
                return f"Which one of the {self.words(of, 'the ')} has the {most}?"
            case And():
                return f"What is in both, the {self.words(program, 'the ')}?"
            case _:
                return f"What is the {self.words(program, 'the ')}?"


def _degree(program: Extreme) -> str:
    return "highest" if program.largest else "lowest"


def plan(program: Program) -> list[str]:
    """Return the tool calls that make the program's variable, with the listings they need."""
    actions: list[str] = []
    count = 0

    def make(action: str) -> str:
        nonlocal count
        actions.append(action)
        count += 1
        return f"#{count - 1}"

    def walk(part: Program) -> str:
        match part:
            case Entity(name):
                return name
            case Join(relation, _, of):
                reference = walk(of)
                actions.append(f"get_relations({reference})")
                return make(f"get_neighbors({reference},{relation})")
            case And(left, right):
                return make(f"intersection({walk(left)},{walk(right)})")
            case Extreme(of, attribute, largest):
                reference = walk(of)
                actions.append(f"get_attributes({reference})")
                return make(f"{'argmax' if largest else 'argmin'}({reference},{attribute})")
            case Count(of):
                return make(f"count({walk(of)})")

    walk(program)
    return actions


def action(text: str) -> tuple[str, list[str]]:
    """Parse tool and arguments of a gold action."""
    tool, _, rest = text.partition("(")
    return tool, [argument.strip() for argument in rest.removesuffix(")").split(",")]


def replay(actions: Sequence[str], bench: Workbench) -> set[str] | None:
    """Run actions and return the last variable's members, or None if one is refused."""
    try:
        for text in actions:
            tool, arguments = action(text)
            bench.use(tool, *arguments)
    except ToolError:
        return None
    return bench.answer(-1) if bench.variables else None


def draw_problem(walker: Walker, random: Random, shape: str, tries: int) -> Problem | None:
    """Draw a problem without its graph, or None after too many failed walks."""
    for _ in range(tries):
        program = walker.draw(random, shape)
        found = solve_program(program, walker) if program else None
        if program is None or found is None:
            continue
        about = sorted(entities(program))
        named = {walker.name(entity): entity for entity in about}
        if len(named) == len(about):
            return Problem(
                walker.question(program),
                named,
                answers=found,
                actions=plan(program),
                short=f"{walker.words(program)}?",
            )
    return None


def solve_program(program: Program, walker: Walker) -> list[str] | None:
    """Return the answers, or None if rules or sizes rule the question out."""
    found = walker.members(program)
    if not 0 < len(found) <= MAX_ANSWERS:
        return None
    if any(walker.members(part) == found for part in _within(program)):
        return None
    bench = Workbench(walker.graph, walker.ontology, {}, "strict")
    return found if replay(plan(program), bench) == set(found) else None


def _within(program: Program) -> Iterator[Program]:
    """Return the programs of the intermediate variables."""
    for part in parts(program):
        if not isinstance(part, Entity):
            yield part
            yield from _within(part)
