"""One episode: tools until a text names the final answer. All calls of a message run, in order."""

import re
from collections.abc import Sequence
from dataclasses import replace

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.types import Status
from agentrl.envs.contract import (
    PROGRESS,
    Message,
    Observation,
    Outcome,
    Tool,
    ToolCall,
    shortened,
    strings,
)
from agentrl.envs.tasks.kg.gold_progress import GoldProgress, gold_programs
from agentrl.envs.tasks.kg.problem import Problem, exact_match, f1
from agentrl.envs.tasks.kg.tools import (
    MAX_VARIABLES,
    NUMBER,
    PARAMETERS,
    Listing,
    ToolError,
    Variable,
    Workbench,
)
from agentrl.envs.tasks.options import Style

MAX_TURNS = 15
TASK_TAG = "kg"  # the whole system message of the compact style
NOTHING = "nothing"  # an empty listing of the compact style
NO_CALL = "No valid function calls found! Need to recheck the function calls."
_FINAL = re.compile(r"(?:Find|Final) Answer: #(\d+)")

SYSTEM = f"""\
You answer questions from the knowledge stored in a knowledge base (KB), which you explore with \
tools.
- A variable is a set of entities. Where a tool takes a variable, it also takes an entity of the \
question by its name.
- Use the tools in their logical order: fetch relations before neighbors, attributes before argmax \
or argmin. Only variables of the same type intersect.
- Variables are numbered from 0 as they are made: #0 is the first, #1 the second.
- When a variable is the answer to the question, respond with 'Final Answer: #id' as plain text, \
without a tool call; for example 'Final Answer: #3'. No tool commits the answer.
- Use one tool at a time until then. You have {MAX_TURNS} rounds; the question must be answered \
within them."""

_DESCRIPTIONS = {
    "get_relations": "List the relations that lead from an entity or a variable to others.",
    "get_neighbors": "Make the variable of all entities that an entity or a variable leads to by a "
    "relation; the relation must have been listed by get_relations.",
    "intersection": "Make the variable of the entities that are in both variables.",
    "get_attributes": "List the numerical attributes of a variable, for argmax and argmin.",
    "argmax": "Make the variable of the entities with the largest value of an attribute; the "
    "attribute must have been listed by get_attributes.",
    "argmin": "Make the variable of the entities with the smallest value of an attribute; the "
    "attribute must have been listed by get_attributes.",
    "count": "Make the variable that is the number of entities in a variable.",
}
TOOLS: tuple[Tool, ...] = tuple(
    strings(name, _DESCRIPTIONS[name], *parameters) for name, parameters in PARAMETERS.items()
)


class KgEnvironment:
    """An Environment over a fresh Workbench."""

    tools = TOOLS

    def __init__(self, problem: Problem, bench: Workbench, style: Style) -> None:
        self._problem = problem
        self._bench: Workbench | None = bench
        self._style = style
        gold = gold_programs(problem)
        self._progress = GoldProgress(gold) if gold else None

    def start(self) -> Observation:
        if self._style == "compact":
            return Observation.of(TASK_TAG, compact_prompt(self._problem))
        return Observation.of(SYSTEM, full_prompt(self._problem))

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        outcome = self._answer(calls)
        if self._progress is None:
            return outcome
        share = self._progress.share(self._open_workbench().variables)
        return replace(outcome, metrics={PROGRESS: 1.0 if outcome.reward else share})

    def close(self) -> None:
        self._bench = None

    def _answer(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if isinstance(calls, str):
            return self._read(calls)
        if not calls:
            return Outcome((Message("user", NO_CALL),))
        return Outcome(tuple(Message("tool", self._reply(call), call.name) for call in calls))

    def _read(self, text: str) -> Outcome:
        index = final_answer(text)
        if index is None:
            return Outcome((Message("user", NO_CALL),))
        bench = self._open_workbench()
        if index >= len(bench.variables):
            return Outcome((), done=True, status=Status.INVALID_ACTION)
        answer, gold = bench.answer(index), set(self._problem.answers)
        return Outcome(
            (), done=True, reward=float(exact_match(answer, gold)), score=f1(answer, gold)
        )

    def _reply(self, call: ToolCall) -> str:
        if call.error:
            return f"Error processing tool call: {call.error}"
        if call.name not in PARAMETERS:
            name = shortened(call.name, 60)
            return f"Provide an invalid function name. Function {name} does not exist"
        parameters = PARAMETERS[call.name]
        arguments = [call.arguments.get(name) for name in parameters]
        texts = [value for value in arguments if isinstance(value, str)]
        if len(texts) < len(parameters) or len(call.arguments) > len(parameters):
            return (
                "Arguments do not match the function signature. "
                f"Error processing arguments for {call.name}"
            )
        bench = self._open_workbench()
        try:
            result = bench.use(call.name, *texts)
        except ToolError as error:
            return f"Error processing tool call: {error}"
        return _describe_variable(result, len(bench.variables) - 1, self._style)

    def _open_workbench(self) -> Workbench:
        if self._bench is None:
            raise EnvironmentFailure("kg: the episode is closed")
        return self._bench


def final_answer(text: str) -> int | None:
    """The variable that a text commits; what it imagines to have observed does not count."""
    match = _FINAL.search(text.split("Observation:", maxsplit=1)[0].replace("\\_", "_"))
    if match is None:
        return None
    return int(match[1]) if len(match[1]) < 10 else MAX_VARIABLES


def full_prompt(problem: Problem) -> str:
    """Return the benchmark's user message."""
    return f"{problem.question}\nEntities: [{', '.join(problem.entities)}]"


def compact_prompt(problem: Problem) -> str:
    """Return the short question, and the entities that are not words of it."""
    question = problem.short or problem.question
    if all(name in question.rstrip("?").split() for name in problem.entities):
        return question
    return f"{question}\n[{', '.join(problem.entities)}]"


def _describe_variable(result: Listing | Variable, index: int, style: Style) -> str:
    if isinstance(result, Listing):
        if style == "compact":
            return " ".join(result.names) or NOTHING
        return f"Observation: [{', '.join(result.names)}]"
    if style == "compact":
        return f"#{index} {result.type}"
    if result.type == NUMBER:
        return f"Observation: variable #{index}, which is a number"
    return f"Observation: variable #{index}, which are instances of {result.type}"
