"""A demonstrator: runs the item's code, then answers what it read.

With noise it errs as a learner does: another digit or operator in the code, an answer at once that
is a guess, a wrong copy. Every call stays well-formed. It may also leave the tool alone.
"""

import re
from collections.abc import Sequence
from random import Random

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.maths.environment import ANSWER, PYTHON
from agentrl.envs.tasks.maths.problem import Problem

_ERROR = re.compile(r"^\w*Error\b", re.MULTILINE)
_OPERATORS = "+-*%"
MAX_TRIES = 2  # of the code


class MathsExpert:
    """An Expert; `noise`: probability of an error a turn. `tool_share`: probability that it uses
    the tool in this episode, where the item has code.
    """

    def __init__(
        self, problem: Problem, *, seed: int, noise: float, tool_share: float = 1.0
    ) -> None:
        self._problem = problem
        self._random = Random(seed)
        self._noise = noise
        self._uses = bool(problem.code) and self._random.random() < tool_share
        self._tries = 0

    def act(self, messages: Sequence[Message]) -> ToolCall:
        errs = self._random.random() < self._noise
        reply = messages[-1].content if self._tries else ""
        failed = not reply or bool(_ERROR.search(reply))
        computes = self._uses and failed and self._tries < MAX_TRIES
        if computes and not (errs and self._random.random() < 0.2):
            self._tries += 1
            code = self._problem.code
            return ToolCall(PYTHON, {"code": make_mistake(code, self._random) if errs else code})
        answer = self._problem.answer if failed else reply.splitlines()[-1]
        return ToolCall(ANSWER, {"answer": miscopy(answer, self._random) if errs else answer})


def make_mistake(code: str, random: Random) -> str:
    """Return `code` with another digit or operator."""
    places = [place for place, sign in enumerate(code) if sign.isdigit() or sign in _OPERATORS]
    return _with_another(code, random.choice(places), random) if places else f"{code}+1"


def miscopy(answer: str, random: Random) -> str:
    """Return another answer of the same form."""
    places = [place for place, sign in enumerate(answer) if sign.isdigit()]
    return _with_another(answer, random.choice(places), random) if places else f"{answer}?"


def _with_another(text: str, place: int, random: Random) -> str:
    kinds = "123456789" if text[place].isdigit() else _OPERATORS
    return text[:place] + random.choice(kinds.replace(text[place], "")) + text[place + 1 :]
