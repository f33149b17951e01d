"""One episode: Python until an answer. Every call of a message runs, in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.envs.contract import Message, Observation, Outcome, Tool, ToolCall, shortened, strings
from agentrl.envs.tasks.maths.problem import Execution, Interpreter, Problem
from agentrl.envs.tasks.maths.scoring import answers_match
from agentrl.envs.tasks.options import Style

PYTHON = "python"
ANSWER = "answer"
ARGUMENTS = {PYTHON: "code", ANSWER: "answer"}
TASK_TAG = "maths"  # the whole system message of the compact style
NO_CALL = "Call answer with the final answer."
NO_OUTPUT = "(no output)"
MAX_CODE = 20_000  # characters
MAX_OUTPUT = 1000  # characters of what one call printed
MAX_ERROR = 500

PROBLEM = "Solve the problem. Reason step by step."
USE = (
    " To compute, call `python` with code: you read what it prints and the value of its last "
    "expression, and its variables stay. You may call it {calls}."
)
FINISH = (
    " When you are done, call `answer` with the final answer alone, a number where it is one; "
    "this ends the episode."
)
ANSWER_TOOL = strings(ANSWER, "Give the final answer; it ends the episode.", "answer")
PYTHON_TOOL = strings(PYTHON, "Run Python code and return its output.", "code")
ARITHMETIC_TOOL = strings(
    PYTHON,
    "Compute arithmetic written in Python: numbers, variables, operators, functions of math, "
    "Fraction and print; no loops, lists or texts.",
    "code",
)


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """`open_python` makes the interpreter, which may run `max_calls` times."""

    tool: Tool
    open_python: Callable[[], Interpreter]
    max_calls: int


class MathsEnvironment:
    """An Environment. `offered`: None: without a tool; its interpreter opens at the first call."""

    def __init__(self, problem: Problem, style: Style, offered: OfferedTool | None) -> None:
        self._problem = problem
        self._style = style
        self._offered = offered
        self._python: Interpreter | None = None
        self._counts = dict.fromkeys(("tool_calls", "tool_errors", "tool_refused"), 0)

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (self._offered.tool, ANSWER_TOOL) if self._offered else (ANSWER_TOOL,)

    def start(self) -> Observation:
        if self._style == "compact":
            return Observation.of(TASK_TAG, self._problem.short or self._problem.question)
        return Observation.of(full_prompt(self._offered), self._problem.question)

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if isinstance(calls, str) or not calls:
            return Outcome((Message("user", NO_CALL),), metrics=self._metrics())
        replies: list[Message] = []
        for call in calls:
            given = self._argument(call)
            if call.name == ANSWER and given is not None:
                won = float(answers_match(given, self._problem.answer))
                return Outcome((), done=True, reward=won, score=won, metrics=self._metrics())
            if given is None or self._offered is None:
                text = self._refusal(call)
            else:
                text = self._run(given, self._offered)
            replies.append(Message("tool", text, call.name))
        return Outcome(tuple(replies), metrics=self._metrics())

    def close(self) -> None:
        if self._python is not None:
            self._python.close()

    def _argument(self, call: ToolCall) -> str | None:
        """Return the argument of a well-formed call of a tool there is."""
        given = call.arguments.get(ARGUMENTS.get(call.name, ""))
        known = call.name in {tool.name for tool in self.tools}
        proper = known and not call.error and len(call.arguments) == 1 and isinstance(given, str)
        return given if proper else None

    def _refusal(self, call: ToolCall) -> str:
        if call.error:
            return f"Error: {call.error}"
        names = [tool.name for tool in self.tools]
        if call.name not in names:
            name = shortened(call.name, 60)
            return f"Error: there is no tool {name!r}; call {' or '.join(names)}."
        return f"Error: {call.name} takes exactly {ARGUMENTS[call.name]}: a string."

    def _run(self, code: str, offered: OfferedTool) -> str:
        if self._counts["tool_calls"] == offered.max_calls:
            self._counts["tool_refused"] += 1
            return f"Error: python was called {_times(offered.max_calls)}, no more. {NO_CALL}"
        self._counts["tool_calls"] += 1
        if len(code) > MAX_CODE:
            execution = Execution("", f"Error: the code is longer than {MAX_CODE} characters")
        else:
            if self._python is None:
                self._python = offered.open_python()
            execution = self._python.run(code)
        self._counts["tool_errors"] += bool(execution.error)
        return format_execution(execution)

    def _metrics(self) -> dict[str, float]:
        """Return the counts so far; `tool_used`: whether the interpreter ran at all."""
        counts = {name: float(count) for name, count in self._counts.items()}
        return {"tool_used": float(counts["tool_calls"] > 0), **counts}


def format_execution(execution: Execution) -> str:
    """Return what the agent reads: the output, then the error's last line, both within bounds."""
    text = shortened(execution.text.strip("\n"), MAX_OUTPUT)
    parts = [text, shortened(execution.error, MAX_ERROR)]
    return "\n".join(filter(None, parts)).replace("\0", "\N{REPLACEMENT CHARACTER}") or NO_OUTPUT


def full_prompt(offered: OfferedTool | None) -> str:
    """Return the system message."""
    use = USE.format(calls=_times(offered.max_calls)) if offered else ""
    return PROBLEM + use + FINISH


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
