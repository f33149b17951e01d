"""Invented graphs of people, places, firms, clubs and books: at most 60 triples each."""

from collections.abc import Mapping
from random import Random

import msgspec

from agentrl.envs.tasks import options
from agentrl.envs.tasks.generated import Drawn
from agentrl.envs.tasks.kg.graph import LocalGraph
from agentrl.envs.tasks.kg.problem import Problem
from agentrl.envs.tasks.kg.questions import Walker, draw_problem
from agentrl.envs.tasks.options import Difficulty

MAX_TRIPLES = 60
WALKS = 30  # in one world

NAMES: Mapping[str, tuple[str, ...]] = {
    "person": (
        "kim", "bob", "eva", "tom", "ann", "joe", "lea", "sam", "ida", "jon", "mia", "ben",
        "zoe", "max", "amy", "leo",
    ),
    "city": ("oslo", "rome", "lima", "cairo", "delhi", "paris", "quito", "tokyo"),
    "land": ("peru", "cuba", "iran", "mali", "fiji", "chad"),
    "firm": ("acme", "zeta", "nova", "apex", "orca", "vega"),
    "club": ("reds", "lions", "hawks", "stars", "bears", "kings"),
    "book": ("dune", "emma", "ruth", "moon", "dawn", "fire", "rain", "gold"),
    "topic": ("war", "love", "food", "art", "law", "sea"),
}  # fmt: skip

# relation, its subjects, its objects, the relation back
FROM_PERSON = (
    ("home", "person", "city", "people"),
    ("job", "person", "firm", "staff"),
    ("side", "person", "club", "team"),
    ("works", "person", "book", "writer"),
    ("boss", "person", "person", "aides"),
)
BEYOND = (
    ("country", "city", "land", "cities"),
    ("seat", "firm", "city", "firms"),
    ("base", "club", "city", "clubs"),
    ("theme", "book", "topic", "books"),
)
ATTRIBUTES = {
    "person": ("age",),
    "city": ("size",),
    "firm": ("worth",),
    "club": ("wins",),
    "book": ("pages",),
}
RANGES = {relation: end for relation, _, end, _ in FROM_PERSON + BEYOND} | {
    back: start for _, start, _, back in FROM_PERSON + BEYOND
}


def draw(difficulty: Difficulty, random: Random, number: int) -> Drawn:
    """Return content and split key of item `number`, or None if the walk finds no question."""
    world = invent(random)
    if len(world.triples) + len(world.attributes) > MAX_TRIPLES:
        return None
    starts = sorted({subject for subject, _, _ in world.triples})
    graph = LocalGraph(world.triples, world.attributes)
    walker = Walker(graph, world.ontology("strict"), starts, str, name_of)
    shapes = walker.shapes(difficulty)
    found = draw_problem(walker, random, shapes[number % len(shapes)], WALKS)
    if found is None:
        return None
    problem = msgspec.structs.replace(
        found, triples=world.triples, attributes=world.attributes, ranges=world.ranges
    )
    return options.content(problem), "\n".join([found.short, *found.answers])


def invent(random: Random) -> Problem:
    """Invent a world: four or five people, four things to know of them, and what those lead to."""
    chosen = random.sample(FROM_PERSON, 4)
    kinds = {end for _, _, end, _ in chosen}
    beyond = [edge for edge in BEYOND if edge[1] in kinds]
    random.shuffle(beyond)
    people = random.sample(NAMES["person"], random.randint(4, 5))
    cast = {"person": people}
    for kind in NAMES:
        if kind not in cast:
            cast[kind] = random.sample(NAMES[kind], 3)
    triples: list[tuple[str, str, str]] = []
    reached: dict[str, set[str]] = {"person": set(people)}
    for relation, start, end, back in [*chosen, *beyond[:2]]:
        for subject in sorted(reached.get(start, ())):
            found = random.choice([each for each in cast[end] if each != subject])
            reached.setdefault(end, set()).add(found)
            triples += [(_id(subject), relation, _id(found)), (_id(found), back, _id(subject))]
    return Problem(
        question="",
        entities={},
        answers=[],
        triples=sorted(set(triples)),
        attributes=_values(reached, random),
        ranges={relation: RANGES[relation] for relation in sorted({r for _, r, _ in triples})},
    )


def name_of(entity: str) -> str:
    return entity.removeprefix("m.")


def _id(name: str) -> str:
    return f"m.{name}"


def _values(
    reached: Mapping[str, set[str]], random: Random
) -> list[tuple[str, str, str | int | float]]:
    """Give every member of a kind every attribute, with distinct values."""
    values: list[tuple[str, str, str | int | float]] = []
    for kind, members in sorted(reached.items()):
        for attribute in ATTRIBUTES.get(kind, ()):
            numbers = random.sample(range(10, 100), len(members))
            pairs = zip(sorted(members), numbers, strict=True)
            values += [(_id(member), attribute, number) for member, number in pairs]
    return values
