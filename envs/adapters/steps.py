"""The turns of other people's environments: each call is a step of theirs, which has a reward."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentrl.core.types import Status
from agentrl.envs.contract import Message, Outcome, ToolCall

Answer = tuple[str, Status | None]
"""What the agent reads, and how the episode ended; None: it goes on."""


class StepEnvironment(ABC):
    """The part of an Environment that applies a turn: its calls in order, until one ends the
    episode. The last turn ends it, too, so that the rewards until then count.
    """

    def __init__(self, max_turns: int, discount: float = 1.0) -> None:
        """`discount`: of the reward of each further step."""
        self._max_turns, self._discount = max_turns, discount
        self._turns = 0
        self._rewards: list[float] = []  # of each step
        self._paid = 0  # how many of them earlier turns had

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        """Raises EnvironmentFailure."""
        self._turns += 1
        answers: list[Message] = []
        if isinstance(calls, str) or not calls:
            answer, ended = self._answer_text(calls if isinstance(calls, str) else "")
            if ended is not None:
                return self._end(ended)
            answers.append(Message("user", answer))
            calls = ()
        for call in calls:
            answer, ended = self._answer_call(call)
            if ended is not None:
                return self._end(ended)
            answers.append(Message("tool", answer, call.name))
        if self._turns >= self._max_turns:
            return self._end(Status.TASK_LIMIT)
        return Outcome(tuple(answers), reward=self._turn_reward())

    @abstractmethod
    def _answer_text(self, text: str) -> Answer:
        """Apply a turn without a call."""

    @abstractmethod
    def _answer_call(self, call: ToolCall) -> Answer:
        """Apply a call."""

    @abstractmethod
    def _end(self, status: Status) -> Outcome:
        """Return the last outcome."""

    def _turn_reward(self) -> float:
        """Return the discounted rewards of the steps since the last turn."""
        first, self._paid = self._paid, len(self._rewards)
        new = enumerate(self._rewards[first:], first)
        return math.fsum(reward * self._discount**step for step, reward in new)
