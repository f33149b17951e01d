"""Which share of a question is done: the variables of its gold tool calls, then the answer.

    gold tool calls ─▶ gold_programs() ─▶ GoldProgress ◀─ the variables that the agent has made

Programs are compared, not their members, so no query is needed. A variable is never lost and counts
once, so going back and forth earns nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from agentrl.envs.tasks.kg.problem import Problem
from agentrl.envs.tasks.kg.program import And, Count, Entity, Extreme, Join, Program
from agentrl.envs.tasks.kg.questions import action
from agentrl.envs.tasks.kg.tools import Variable


class GoldProgress:
    """Counts the gold variables that an episode has made."""

    def __init__(self, gold: Sequence[Program]) -> None:
        self._missing = {normal_form(program) for program in gold}
        self._stages = len(self._missing) + 1  # the answer is the last one
        self._seen = 0

    def share(self, variables: Sequence[Variable]) -> float:
        """Return the share of the stages that is done, below 1: the question is not answered.

        `variables`: all that the episode has made, in order.
        """
        new = variables[self._seen :]
        self._seen = len(variables)
        self._missing.difference_update(normal_form(each.program) for each in new)
        return 1.0 - (len(self._missing) + 1) / self._stages


def gold_programs(problem: Problem) -> list[Program]:
    """Return the programs of the variables that the gold tool calls make, in order.

    Empty if the item has no gold tool calls, or one that cannot be read.
    """
    made: list[Program] = []

    def read(reference: str) -> Program:
        if reference.startswith("#"):
            return made[int(reference[1:])]
        return Entity(problem.entities.get(reference, reference))

    try:
        for text in problem.actions:
            match action(text):
                case ("get_relations" | "get_attributes", _):
                    pass
                case ("get_neighbors", [of, relation]):
                    made.append(Join(relation, inverse=True, of=read(of)))
                case ("intersection", [left, right]):
                    made.append(And(read(left), read(right)))
                case ("argmax" | "argmin" as tool, [of, attribute]):
                    made.append(Extreme(read(of), attribute, largest=tool == "argmax"))
                case ("count", [of]):
                    made.append(Count(read(of)))
                case _:
                    return []
    except (IndexError, ValueError):  # no such variable; no name of an entity or a relation
        return []
    return made


def normal_form(program: Program) -> Program:
    """Return a program equal to that of the same steps whose intersections are taken otherwise."""
    match program:
        case Entity():
            return program
        case And():
            return reduce(And, sorted(_intersected(program), key=str))
        case _:
            return replace(program, of=normal_form(program.of))


def _intersected(program: Program) -> set[Program]:
    if isinstance(program, And):
        return _intersected(program.left) | _intersected(program.right)
    return {normal_form(program)}
