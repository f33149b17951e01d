"""Generated items: a question from a template, and the code whose value is its answer."""

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import NamedTuple

import msgspec

from agentrl.envs.tasks.generated import Drawn
from agentrl.envs.tasks.maths.calculator import Calculator
from agentrl.envs.tasks.maths.problem import Problem
from agentrl.envs.tasks.options import Difficulty


class Question(NamedTuple):
    """`full`, `short`: as the prompts of the two styles ask it."""

    full: str
    short: str
    code: str


Template = Callable[[Random], Question | None]


def _product(random: Random) -> Question:
    a, b = random.randint(12, 99), random.randint(12, 99)
    return Question(f"What is {a} * {b}?", f"{a}*{b}?", f"{a}*{b}")


def _sum(random: Random) -> Question:
    a, b, c = (random.randint(100, 999) for _ in range(3))
    return Question(f"What is {a} + {b} - {c}?", f"{a}+{b}-{c}?", f"{a}+{b}-{c}")


def _product_and_sum(random: Random) -> Question:
    a, b, c = random.randint(12, 99), random.randint(3, 9), random.randint(12, 99)
    return Question(f"What is {a} * {b} + {c}?", f"{a}*{b}+{c}?", f"{a}*{b}+{c}")


def _remainder(random: Random) -> Question:
    a, b = random.randint(100, 999), random.randint(12, 99)
    return Question(f"What is the remainder of {a} divided by {b}?", f"{a} mod {b}?", f"{a}%{b}")


def _small_step(sign: str, random: Random) -> Question:
    """Ask for the sum or difference with one digit, the question that needs a tool least."""
    a, b = random.randint(11, 299), random.randint(2, 9)
    return Question(f"What is {a} {sign} {b}?", f"{a}{sign}{b}?", f"{a}{sign}{b}")


def _divisor(random: Random) -> Question:
    common = random.randint(4, 30)
    a, b = common * random.randint(3, 20), common * random.randint(3, 20)
    full = f"What is the greatest common divisor of {a} and {b}?"
    return Question(full, f"gcd {a} {b}?", f"gcd({a},{b})")


def _multiple(random: Random) -> Question:
    a, b = random.randint(12, 60), random.randint(12, 60)
    full = f"What is the least common multiple of {a} and {b}?"
    return Question(full, f"lcm {a} {b}?", f"lcm({a},{b})")


def _equation(random: Random) -> Question:
    a, x, b = random.randint(3, 19), random.randint(20, 99), random.randint(11, 99)
    c = a * x + b
    return Question(f"Solve {a}x + {b} = {c} for x.", f"{a}x+{b}={c} x?", f"({c}-{b})//{a}")


def _fractions(random: Random) -> Question:
    a, c = random.randint(1, 9), random.randint(1, 9)
    b, d = random.randint(a + 1, 19), random.randint(c + 1, 19)
    full = f"What is {a}/{b} + {c}/{d}? Give a fraction."
    return Question(full, f"{a}/{b}+{c}/{d}?", f"Fraction({a},{b})+Fraction({c},{d})")


def _percent(random: Random) -> Question:
    percent, of = random.randint(2, 19) * 5, random.randint(12, 99) * 10
    full = f"What is {percent} percent of {of}?"
    return Question(full, f"{percent} percent of {of}?", f"{of}*{percent}/100")


def _boxes(random: Random) -> Question:
    a, b, c = random.randint(12, 48), random.randint(12, 60), random.randint(3, 11)
    full = f"A shop has {b} boxes with {a} cups each, and sells {c} cups. How many cups are left?"
    return Question(full, f"{b} boxes of {a} less {c}?", f"{b}*{a}-{c}")


def _power(random: Random) -> Question:
    a, n, m = random.randint(3, 30), random.randint(10, 99), random.randint(50, 999)
    full = f"What is the remainder of {a} to the power of {n} divided by {m}?"
    return Question(full, f"{a}^{n} mod {m}?", f"pow({a},{n},{m})")


def _two_equations(random: Random) -> Question | None:
    a, b, c, d = (random.randint(2, 12) for _ in range(4))
    x, y = random.randint(11, 60), random.randint(11, 60)
    if a * d == b * c:
        return None
    e, f = a * x + b * y, c * x + d * y
    full = f"{a}x + {b}y = {e} and {c}x + {d}y = {f}. What is x?"
    code = f"({e}*{d}-{b}*{f})//({a}*{d}-{b}*{c})"
    return Question(full, f"{a}x+{b}y={e} {c}x+{d}y={f} x?", code)


def _divisible(random: Random) -> Question:
    n, a, b = random.randint(500, 5000), random.randint(4, 15), random.randint(4, 15)
    full = f"How many integers from 1 to {n} are divisible by {a} or by {b}?"
    return Question(full, f"1 to {n} by {a} or {b}?", f"{n}//{a}+{n}//{b}-{n}//lcm({a},{b})")


def _committees(random: Random) -> Question:
    n, k = random.randint(9, 120), random.randint(3, 9)
    full = f"In how many ways can {k} of {n} people be chosen?"
    return Question(full, f"choose {k} of {n}?", f"comb({n},{k})")


def _work(random: Random) -> Question | None:
    a, b = random.randint(3, 30), random.randint(3, 30)
    if a == b:
        return None
    full = (
        f"One pump fills a tank in {a} hours, another one in {b} hours. How many hours do both "
        "together take? Give a fraction or an integer."
    )
    return Question(full, f"pumps {a} {b}?", f"Fraction({a}*{b},{a}+{b})")


_EASY: tuple[Template, ...] = (
    _product,
    _sum,
    _product_and_sum,
    _remainder,
    partial(_small_step, "+"),
    partial(_small_step, "-"),
)
_MEDIUM: tuple[Template, ...] = (_divisor, _multiple, _equation, _fractions, _percent, _boxes)
_HARD: tuple[Template, ...] = (_power, _two_equations, _divisible, _committees, _work)
TEMPLATES: Mapping[Difficulty, tuple[Template, ...]] = {
    "easy": _EASY,
    "medium": _EASY + _MEDIUM,
    "hard": _MEDIUM + _HARD,
}


def draw(difficulty: Difficulty, random: Random, number: int) -> Drawn:
    """Return content and split key of item `number`, or None if the draw makes no question."""
    templates = TEMPLATES[difficulty]
    question = templates[number % len(templates)](random)
    if question is None:
        return None
    found = Calculator().run(question.code)
    if found.error:
        raise AssertionError(f"template: {question.code}: {found.error}")
    problem = Problem(question.full, found.text, question.short, question.code)
    return msgspec.to_builtins(problem), f"{question.short}\n{found.text}"
