"""Which share of a published game's task is done: things taken, treated, brought.

    goal ─▶ read_goal() ─▶ GoalConditions + World ─▶ progress()

The stages are those of generated households (stages.py), all of them towards one place.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.envs.tasks.alfworld.published.pddl import And, Atom, Condition, Exists, Not, Or
from agentrl.envs.tasks.alfworld.published.world_state import World
from agentrl.envs.tasks.alfworld.stages import ErrandStages

STATES = ("isclean", "ishot", "iscool")


@dataclass(frozen=True, slots=True)
class GoalConditions:
    """`thing`, `target`: types; no target: a thing is looked at under a lamp. `state`: or none."""

    thing: str
    count: int
    state: str
    target: str


def read_goal(goal: Condition) -> GoalConditions | None:
    """Return the conditions of one of ALFWorld's goals, or None for another goal."""
    atoms = list(_atoms(goal))
    lamps = {atom.terms[0] for atom in atoms if atom.predicate == "istoggled"}
    things = [
        atom.terms
        for atom in atoms
        if atom.predicate == "objecttype" and atom.terms[0] not in lamps
    ]
    kinds = {kind for _, kind in things}
    targets = {atom.terms[1] for atom in atoms if atom.predicate == "receptacletype"}
    if len(kinds) != 1 or len(targets) > 1 or not (targets or lamps):
        return None
    return GoalConditions(
        thing=kinds.pop(),
        count=len({name for name, _ in things}),
        state=next((atom.predicate for atom in atoms if atom.predicate in STATES), ""),
        target=targets.pop() if targets else "",
    )


def progress(goal: GoalConditions, world: World) -> float:
    """Return the share of an unfinished task, 0 to 1."""
    held = {thing for _, thing in world["holds"].rows}
    things = [thing for thing, _ in world["objecttype"].at(1, goal.thing)]
    if not goal.target:
        return 0.5 if held.intersection(things) else 0.0
    ready = {thing for (thing,) in world[goal.state].rows} if goal.state else set(things)
    lying = world["inreceptacle"].rows
    stages = ErrandStages(goal.count, bool(goal.state))

    def share(place: str) -> float:
        return stages.share(
            stages.of_thing(held=each in held, ready=each in ready, brought=(each, place) in lying)
            for each in things
        )

    places = (place for place, _ in world["receptacletype"].at(1, goal.target))
    return max(map(share, places), default=0.0)


def _atoms(condition: Condition) -> Iterator[Atom]:
    """Yield the atoms that must hold."""
    match condition:
        case Atom():
            yield condition
        case And(parts):
            for part in parts:
                yield from _atoms(part)
        case Exists(_, part):
            yield from _atoms(part)
        case Not() | Or():
            return
