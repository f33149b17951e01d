"""GSM8K, and any other file of its form: lines of {"question": …, "answer": "… #### 42"}."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Item
from agentrl.envs.tasks.datasets import Dataset, locate
from agentrl.envs.tasks.maths.problem import Problem
from agentrl.envs.tasks.maths.reasoning import code_gives
from agentrl.envs.tasks.maths.scoring import answers_match

TASK = "maths"
SPLITS = {"train": "maths/gsm8k/train.jsonl", "test": "maths/gsm8k/test.jsonl"}
GSM8K = Dataset(
    TASK,
    "gsm8k",
    tuple(SPLITS.values()),
    "grade_school_math/data/ of the repository openai/grade-school-math",
    "MIT",
    "7,473 (train), 1,319 (test)",
)
DATASETS = (GSM8K,)
MARK = "####"
_COMPUTED = re.compile(r"<<([^<>=]+)=[^<>]*>>")  # its computations: <<48/2=24>>


class _Line(msgspec.Struct):
    question: str
    answer: str


def items(split: str, given: str = "") -> tuple[Item, ...]:
    """Return the items of a split, in the order of its file. Raises ItemError."""
    path = locate(GSM8K, given) / SPLITS[split]
    return tuple(read_lines(path, split))


def read_lines(path: Path, split: str) -> Iterator[Item]:
    """Yield an item a line. Raises ItemError with the number of an invalid line."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            problem = _problem(msgspec.json.decode(line, type=_Line))
        except (msgspec.MsgspecError, ValueError) as error:
            raise ItemError(f"{path}: line {number}: {error}") from error
        yield Item(TASK, f"{split}-{number}", msgspec.to_builtins(problem))


def _problem(line: _Line) -> Problem:
    solution, mark, answer = line.answer.rpartition(MARK)
    answer = answer.strip()
    if not mark or not answers_match(answer, answer):
        raise ValueError(f"the answer does not end with {MARK} and a result")
    computed = _COMPUTED.findall(solution)
    code = computed[-1].strip() if computed else ""
    return Problem(line.question, answer, code=code if code_gives(code, answer) else "")
