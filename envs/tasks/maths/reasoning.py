"""Items of reasoning-gym: problems of its arithmetic, algebra and number theory, with one answer.

An item holds question and answer, so only who draws items needs the package.
"""

from collections.abc import Mapping
from fractions import Fraction
from random import Random
from typing import Any

import msgspec

from agentrl.core.errors import ConfigError
from agentrl.envs.tasks.generated import Drawn
from agentrl.envs.tasks.maths.calculator import Calculator
from agentrl.envs.tasks.maths.problem import Problem
from agentrl.envs.tasks.maths.scoring import answers_match
from agentrl.envs.tasks.options import Difficulty

# Their answers are numbers, or texts that can be written in one way only. Numbers compare by value,
# so no question may hold its answer in another form, as those of `fraction_simplification` do.
DATASETS: Mapping[Difficulty, tuple[str, ...]] = {
    "easy": ("chain_sum", "products", "leg_counting", "gcd"),
    "medium": ("basic_arithmetic", "decimal_chain_sum", "lcm", "count_bits", "simple_equations"),
    "hard": ("dice", "prime_factorization", "coin_flip", "gsm_symbolic"),
}
SIZE = 1 << 24  # problems of a dataset; each is made when it is asked for
HINT = "run `pip install 'agentrl-system[reasoning-gym]'`"


def draw(difficulty: Difficulty, random: Random, number: int) -> Drawn:
    """Return content and split key of item `number`, or None. Raises ConfigError."""
    try:
        from agentrl.envs.adapters.reasoning_gym.task_source import dataset, entry
    except ImportError as error:
        raise ConfigError("maths: origin reasoning-gym needs reasoning-gym", hint=HINT) from error
    names = DATASETS[difficulty]
    problems = dataset(names[number % len(names)], "{}", 0, SIZE)
    return make_item(entry(problems, random.randrange(SIZE)))


def make_item(entry: Mapping[str, Any]) -> Drawn:
    """Return content and split key of a problem of reasoning-gym.

    None where nothing matches its answer, or its expression has another value: some expressions of
    `basic_arithmetic` divide with a remainder, which its answers drop.
    """
    question, answer = str(entry["question"]).strip(), read_exact_answer(entry)
    code = str(entry["metadata"].get("expression", ""))
    if not answers_match(answer, answer) or (code and not code_gives(code, answer)):
        return None
    return msgspec.to_builtins(Problem(question, answer, code=code)), f"{question}\n{answer}"


def read_exact_answer(entry: Mapping[str, Any]) -> str:
    """Return its answer; that of `coin_flip` as a fraction, because the decimal is rounded."""
    rational = entry["metadata"].get("rational")
    if rational is None:
        return str(entry["answer"])
    return str(Fraction(rational["numerator"], rational["denominator"]))


def code_gives(code: str, answer: str) -> bool:
    """Whether arithmetic has this value."""
    found = Calculator().run(code)
    return not found.error and answers_match(found.text, answer)
