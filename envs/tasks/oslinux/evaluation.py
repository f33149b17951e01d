"""How an episode is scored: targets before the agent acts, the rest of the check after.

A check is a list of steps; a script is run with the answer and the outputs of the steps before it
as arguments, a matcher compares the answer with the first output. Early steps are the examples,
and the scripts that stand before a matcher and read no argument: they say what is right, not
whether it was done. An early step that fails before the agent acts is run after it, and so is one
that changes its machine where the item's scripts draw by chance: no second machine is like it.
"""

import re
from collections.abc import Mapping

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.tasks.oslinux.machine import Machine
from agentrl.envs.tasks.oslinux.matchers import MATCHERS, matches
from agentrl.envs.tasks.oslinux.problem import Problem, Script, Step

_READS_ARGUMENTS = re.compile(r"\$[1-9@*#]|\$\{[1-9@*#!]|\bargv\b|\bshift\b")


class Judge:
    """Scores one problem. `timeout_s`: limit of one script."""

    def __init__(self, problem: Problem, timeout_s: float) -> None:
        self._problem = problem
        self._timeout_s = timeout_s
        self._targets: dict[int, str] = {}

    def prepare(self, machine: Machine) -> None:
        """Run the init and start scripts; what they leave running is part of the problem."""
        for number, script in enumerate(self._problem.init):
            ran = machine.run(script, (), self._timeout_s)
            if ran.status != 0:
                machine.close()
                how = "was too slow" if ran.status is None else f"exited with {ran.status}"
                said = ran.error.strip().rpartition("\n")[2]
                raise EnvironmentFailure(f"os: init script {number} {how}: {said}")
        if self._problem.start is not None:
            machine.command(self._problem.start.code, self._timeout_s)
        machine.keep()

    def aims(self) -> bool:
        """Return whether steps must run before the agent acts."""
        return bool(early_steps(self._problem))

    def forget(self) -> None:
        """Discard the targets, so that the steps run after the agent, on its machine."""
        self._targets.clear()

    def aim(self, machine: Machine) -> bool:
        """Compute the targets; return whether the machine is unchanged since `prepare`."""
        unchanged = True
        for number, step in early_steps(self._problem).items():
            ran = machine.run(_script(self._problem, step), (), self._timeout_s, watch=True)
            unchanged = unchanged and not ran.changed
            if ran.status == 0:
                self._targets[number] = ran.text
        return unchanged

    def passes(self, answer: str, machine: Machine) -> bool:
        """Return whether the answer, and the state of the machine, is right."""
        if self._problem.match is not None:
            return matches(self._problem.match, answer)
        if any(self._is_run(number, step) for number, step in enumerate(self._problem.check)):
            machine.stop()
        outputs: list[str] = []
        for number, step in enumerate(self._problem.check):
            output = self._output(number, step, [answer, *outputs], machine)
            if output is None:
                return False
            outputs.append(output)
        return bool(outputs)

    def _is_run(self, number: int, step: Step) -> bool:
        return step.matcher is None and number not in self._targets

    def _output(
        self, number: int, step: Step, arguments: list[str], machine: Machine
    ) -> str | None:
        """Return a step's output, or None if it fails."""
        if step.matcher is not None:
            right = len(arguments) > 1 and MATCHERS[step.matcher](arguments[0], arguments[1])
            return "" if right else None
        if number in self._targets:
            return self._targets[number]
        ran = machine.run(_script(self._problem, step), arguments, self._timeout_s)
        return ran.text if ran.status == 0 else None


def early_steps(problem: Problem) -> Mapping[int, Step]:
    """Return the steps whose output is a target, by their place in the check."""
    last = max((n for n, step in enumerate(problem.check) if step.matcher), default=0)
    return {
        number: step
        for number, step in enumerate(problem.check)
        if step.example
        or (step.script and number < last and not _READS_ARGUMENTS.search(step.script.code))
    }


def _script(problem: Problem, step: Step) -> Script:
    script = problem.example if step.example else step.script
    assert script is not None  # noqa: S101 — the source has read the problem
    return script
