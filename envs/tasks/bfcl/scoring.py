"""The two checks of the benchmark, after each request: states agree, answers are among those given.

The ground truth's calls run on fresh instances of the same classes, request after request. State:
every class is as the truth's is. Response: the truth's answers for this request are among all
answers the agent has had, whatever their order. (BFCL v3, multi-turn: Patil et al. 2025; the
checker of github.com/ShishirPatil/gorilla.)
"""

from collections import Counter

from agentrl.envs.tasks.bfcl.problem import Problem
from agentrl.envs.tasks.bfcl.world import World, written


class Judge:
    """Judges one conversation, a request at a time."""

    def __init__(self, problem: Problem) -> None:
        """Raises ItemError."""
        self._requests = problem.requests
        self._truth = World(problem.classes, problem.config)
        self._given: Counter[str] = Counter()
        self._calls = 0

    def saw(self, answer: str) -> None:
        """What a call of the agent was answered."""
        self._given[answer] += 1
        self._calls += 1

    def right(self, number: int, world: World) -> bool:
        """Whether the agent has done request `number`; asked of each once, in order.

        A request without a truth is not judged, as published; one with a truth wants a call.
        """
        calls, self._calls = self._calls, 0
        truth = self._requests[number].truth
        if not truth:
            return True
        wanted = Counter(written(self._truth.run(call.name, call.arguments)) for call in truth)
        return calls > 0 and world.state() == self._truth.state() and wanted <= self._given
