"""One episode: commands in one shell until an answer. Only the first call of a message counts."""

from collections.abc import Callable, Sequence

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.contract import Message, Observation, Outcome, ToolCall, strings
from agentrl.envs.tasks.options import Style
from agentrl.envs.tasks.oslinux.evaluation import Judge
from agentrl.envs.tasks.oslinux.machine import Machine
from agentrl.envs.tasks.oslinux.problem import Problem
from agentrl.envs.tasks.oslinux.terminal import observation

BASH = "bash_action"
FINISH = "finish_action"
ANSWER = "answer_action"
ARGUMENTS = {BASH: "script", FINISH: "thought", ANSWER: "answer"}
TASK_TAG = "os"  # the whole system message of the compact style
NO_CALL = "No executable tool calls found. Please call a tool instead"
UNKNOWN_TOOL = "Invalid function call. Please call a tool instead"
PROBLEM = "Now, I will start a new problem in a new OS. My problem is:\n\n"

SYSTEM = """\
You act like a person in front of a Linux system, which I play. Carry out the operations I ask \
for, or answer my questions about the system.
Every turn, first think about what to do, then call exactly one of the tools you are given; never \
respond without a call.
I cut output that is too long; what is left is incomplete, and you have to deal with that by \
yourself. Your bash code must not wait for input.
When the task is done, or something is missing that you would need to do it, call `finish_action`: \
you will get no further information. When you have the answer to a question, call `answer_action`; \
do not just write it. Answers must be exact and precise, a single number for instance, and no full \
sentences or phrases."""

TOOLS = (
    strings(BASH, "Run bash code in the system's shell and return its output.", "script"),
    strings(FINISH, "The task is done, or it cannot be; say what you thought.", "thought"),
    strings(ANSWER, "Answer the question.", "answer"),
)


class OsEnvironment:
    """An Environment on a Machine that `open_machine` makes when the episode starts.

    `command_s`, `script_s`: seconds for one of the agent's commands, of the item's scripts.
    """

    tools = TOOLS

    def __init__(
        self,
        problem: Problem,
        style: Style,
        open_machine: Callable[[], Machine],
        *,
        command_s: float,
        script_s: float,
    ) -> None:
        self._problem = problem
        self._style = style
        self._open = open_machine
        self._command_s = command_s
        self._judge = Judge(problem, script_s)
        self._machine: Machine | None = None

    @property
    def machine(self) -> Machine:
        """Return the machine. Raises EnvironmentFailure before `start`."""
        if self._machine is None:
            raise EnvironmentFailure("os: the episode was not started")
        return self._machine

    def start(self) -> Observation:
        self._renew()
        if self._judge.aims():
            self._aim()
        if self._style == "compact":
            return Observation.of(TASK_TAG, self._problem.short or self._problem.description)
        return Observation.of(SYSTEM, PROBLEM + self._problem.description)

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if isinstance(calls, str) or not calls:
            return Outcome((Message("user", NO_CALL),))
        call = calls[0]
        if call.error:
            return _reply(call, f"Error: {call.error}")
        if call.name not in ARGUMENTS:
            return _reply(call, UNKNOWN_TOOL)
        given = call.arguments.get(ARGUMENTS[call.name])
        if not isinstance(given, str) or len(call.arguments) != 1:
            needed = f"{call.name} takes exactly {ARGUMENTS[call.name]}: a string."
            return _reply(call, f"Error: {needed}")
        if call.name != BASH:
            return self._finish(given)
        said = self.machine.command(given, self._command_s)
        late_s = self._command_s if said.late else None
        return _reply(call, observation(said.text, late_s=late_s, ended=said.ended))

    def passes(self, answer: str) -> bool:
        """Return whether this would be the right answer now; kills what the agent left running."""
        return self._judge.passes(answer, self.machine)

    def close(self) -> None:
        if self._machine is not None:
            self._machine.close()

    def _aim(self) -> None:
        """Compute the targets; replace the machine if that changed it."""
        prepared = self.machine.fingerprint()
        if self._judge.aim(self.machine):
            return
        self.machine.close()
        self._renew()
        if self.machine.fingerprint() != prepared:
            self._judge.forget()

    def _renew(self) -> None:
        self._machine = self._open()
        self._judge.prepare(self._machine)

    def _finish(self, answer: str) -> Outcome:
        won = float(self.passes(answer))
        return Outcome((), done=True, reward=won, score=won)


def _reply(call: ToolCall, text: str) -> Outcome:
    return Outcome((Message("tool", text, call.name),))
