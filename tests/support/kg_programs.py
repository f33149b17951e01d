"""Programs as the benchmark writes them: s-expressions."""

import re
from collections.abc import Iterator

from agentrl.envs.tasks.kg.program import (
    MAX_SIZE,
    And,
    Count,
    Entity,
    Extreme,
    Join,
    Program,
    ProgramError,
    require_size,
)

_TOKEN = re.compile(r"[()]|[^\s()]+")


def parse(text: str) -> Program:
    """Parse a program. Raises ProgramError."""
    tokens = iter(_TOKEN.findall(text))
    program = _read(tokens, next(tokens, ""))
    if next(tokens, None) is not None:
        raise ProgramError("something follows the program")
    return program


def _read(tokens: Iterator[str], first: str, depth: int = 0) -> Program:
    if depth > MAX_SIZE:
        raise ProgramError("the program is nested too deeply")
    if first != "(":
        return Entity(first)
    operator = next(tokens, "")
    program: Program
    if operator == "JOIN":
        relation, inverse = _relation(tokens)
        program = Join(relation, inverse, _read(tokens, next(tokens, ""), depth + 1))
    elif operator in ("AND", "COUNT", "ARGMAX", "ARGMIN"):
        inner = _read(tokens, next(tokens, ""), depth + 1)
        if operator == "COUNT":
            program = Count(inner)
        elif operator == "AND":
            program = And(inner, _read(tokens, next(tokens, ""), depth + 1))
        else:
            program = Extreme(inner, next(tokens, ""), operator == "ARGMAX")
    else:
        raise ProgramError(f"no operator {operator[:40]!r}")
    _expect(tokens, ")")
    return require_size(program)


def _relation(tokens: Iterator[str]) -> tuple[str, bool]:
    relation = next(tokens, "")
    if relation != "(":
        return relation, False
    _expect(tokens, "R")
    relation = next(tokens, "")
    _expect(tokens, ")")
    return relation, True


def _expect(tokens: Iterator[str], wanted: str) -> None:
    if next(tokens, "") != wanted:
        raise ProgramError(f"{wanted} is missing")
