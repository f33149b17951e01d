"""Checks each request with the two checks of bfcl-eval: of the state, and of the results.

The ground truth's calls run on fresh instances of the same classes, request after request. State:
the attributes of every class equal the truth's. Results: those of the truth's calls for this
request are among all results the agent has had, in any order. (BFCL v3, multi-turn: Patil et al.
2025; `multi_turn_checker` of bfcl-eval.)
"""

from agentrl.envs.tasks.bfcl.package import import_part
from agentrl.envs.tasks.bfcl.problem import Problem
from agentrl.envs.tasks.bfcl.simulation import Simulation


class Checker:
    """Checks one conversation, a request at a time."""

    def __init__(self, problem: Problem) -> None:
        """Raises ItemError."""
        self._checks = import_part("eval_checker.multi_turn_eval.multi_turn_checker")
        self._requests = problem.requests
        self._truth = simulate(problem)
        self._results: list[str] = []
        self._has_called = False

    def record(self, result: str) -> None:
        """Record the result of a call of the agent."""
        self._results.append(result)
        self._has_called = True

    def is_done(self, number: int, simulation: Simulation) -> bool:
        """Return whether the agent has done request `number`; asked once of each, in order.

        A request without a truth is not judged; one with a truth requires a call.
        """
        has_called, self._has_called = self._has_called, False
        truth = self._requests[number].truth
        expected = [self._truth.run(call.name, call.arguments) for call in truth]
        if not truth:
            return True
        if not has_called:
            return False
        instances = simulation.instances, self._truth.instances
        return bool(
            self._checks.state_checker(*instances)["valid"]
            and self._checks.response_checker(self._results, expected, number)["valid"]
        )


def simulate(problem: Problem) -> Simulation:
    """Create the instances of an item. Raises ItemError."""
    return Simulation(problem.classes, problem.config, long_context=problem.long_context)
