"""Items of reasoning-gym: problems of its arithmetic, algebra and number theory, with one answer.

An item holds question and answer, so only who draws items needs the package.
"""

from collections.abc import Mapping
from random import Random

import msgspec

from agentrl.core.errors import ConfigError
from agentrl.envs.tasks.generated import Drawn
from agentrl.envs.tasks.maths.calculator import Calculator
from agentrl.envs.tasks.maths.problem import Problem
from agentrl.envs.tasks.maths.scoring import answers_match
from agentrl.envs.tasks.options import Difficulty

# Their answers are numbers, or texts that can be written in one way only.
DATASETS: Mapping[Difficulty, tuple[str, ...]] = {
    "easy": ("chain_sum", "products", "leg_counting", "gcd"),
    "medium": ("basic_arithmetic", "decimal_chain_sum", "lcm", "count_bits", "simple_equations"),
    "hard": ("fraction_simplification", "dice", "prime_factorization", "coin_flip", "gsm_symbolic"),
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
    drawn = entry(problems, random.randrange(SIZE))
    question, answer = str(drawn["question"]).strip(), str(drawn["answer"])
    if not answers_match(answer, answer):
        return None
    code = str(drawn["metadata"].get("expression", ""))
    problem = Problem(question, answer, code=code if code_gives(code, answer) else "")
    return msgspec.to_builtins(problem), f"{question}\n{answer}"


def code_gives(code: str, answer: str) -> bool:
    """Whether arithmetic has this value."""
    found = Calculator().run(code)
    return not found.error and answers_match(found.text, answer)
