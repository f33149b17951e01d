"""A demonstrator: runs the item's commands, answers what the last one wrote.

An item of the benchmark has no commands: its example is run, or its known answer given.

With noise it errs as a learner does: a wrong word, number or option, an answer before anything was
read, a wrong copy. Every call stays well-formed.
"""

import re
from collections.abc import Mapping, Sequence
from random import Random

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.oslinux.environment import ANSWER, BASH, FINISH
from agentrl.envs.tasks.oslinux.generate import DONE
from agentrl.envs.tasks.oslinux.problem import Problem
from agentrl.envs.tasks.oslinux.terminal import output

END = "END_OF_EXAMPLE"
_WORD = re.compile(r"[\w-]+")
_CONFUSED: Mapping[str, tuple[str, ...]] = {
    "wc": ("cat",),
    "-l": ("-c", "-w"),
    "-c": ("-l", "-v"),
    "head": ("tail",),
    "tail": ("head",),
    "sort": ("cat",),
    "find": ("ls",),
    "-name": ("-path",),
    "-maxdepth": ("-mindepth",),
    "-delete": ("-print",),
    "chmod": ("ls",),
    "kill": ("echo",),
    "mv": ("cp",),
    "sed": ("cat",),
    "echo": ("printf %s%s x",),
    "-S": ("-r", "-t"),
    "-Sr": ("-t", "-S"),
    "s": ("",),
}


class OsExpert:
    """An Expert; `noise`: probability of an error a turn.

    `answers_unseen`: it knows no commands, only the answer.
    """

    def __init__(self, problem: Problem, *, seed: int, noise: float) -> None:
        self._problem = problem
        self._random = Random(seed)
        self._noise = noise
        self._commands = commands_of(problem)
        self.answers_unseen = not self._commands
        self._next = 0

    def act(self, messages: Sequence[Message]) -> ToolCall:
        errs = self._random.random() < self._noise
        commands = self._commands
        if not commands:
            return self._answer(known_answer(self._problem), errs=errs)
        if self._next == len(commands):
            return self._answer(output(messages[-1].content).strip(), errs=errs)
        if errs and self._random.random() < 0.3:
            return self._answer(str(self._random.randint(0, 20)), errs=False)
        command = commands[self._next]
        self._next += 1
        return ToolCall(BASH, {"script": make_mistake(command, self._random) if errs else command})

    def _answer(self, read: str, *, errs: bool) -> ToolCall:
        if self._problem.answer:
            return ToolCall(FINISH, {"thought": self._problem.answer})
        return ToolCall(ANSWER, {"answer": miscopy(read, self._random) if errs else read})


def commands_of(problem: Problem) -> Sequence[str]:
    """Return what solves the item in its shell; none where only the answer is known."""
    if problem.commands or problem.example is None:
        return problem.commands
    example = problem.example
    if example.language == "python":
        return [f"python3 - <<'{END}'\n{example.code}\n{END}"]
    return [example.code]


def known_answer(problem: Problem) -> str:
    """Return the answer that the item's match asks for; empty: it names none."""
    return (problem.match.answer if problem.match else None) or ""


def make_mistake(command: str, random: Random) -> str:
    """Return `command` with one plausible mistake."""
    mistakes = [command.rsplit(" ", 1)[0]]
    for found in _WORD.finditer(command):
        for other in _CONFUSED.get(found[0], ()):
            mistakes.append(command[: found.start()] + other + command[found.end() :])
        if found[0].isdecimal():
            number = str(int(found[0]) + 1)
            mistakes.append(command[: found.start()] + number + command[found.end() :])
    return random.choice(mistakes)


def miscopy(answer: str, random: Random) -> str:
    """Return another number, or the answer cut off."""
    if answer.isdecimal():
        return str(int(answer) + random.choice((-1, 1)))
    return answer[: random.randrange(len(answer))] if answer else DONE
