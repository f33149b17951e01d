"""Replaces policy and environment of the episode loop by a recorded episode, up to a step.

    RecordedEpisode ─▶ pool and client: the tokens of each step, then another policy
         ─▶ environment: the recorded calls go to a fresh one, its answers are compared
         ─▶ conversation: what stood between the recorded tokens stands there again

So `workers/episode.py` plays a recording like an episode, and nothing is re-tokenised.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import Status
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.envs.contract import (
    Environment,
    Message,
    Observation,
    Outcome,
    TokenLogprob,
    Tool,
    ToolCall,
    is_counting,
)
from agentrl.workers.conversation.conversation import Conversation
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.episode import ANSWER_KEPT
from agentrl.workers.policies.client import Ask, Completion, CompletionClient

PROMPT = -1  # the step of what differs before any


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a fresh environment and the recording. `step`: PROMPT before the first.

    `field`: messages, call (as parsed today), done, status, reward or score.
    """

    step: int
    field: str
    recorded: str
    found: str


@dataclass(frozen=True, slots=True)
class Successor:
    """The policy that continues after the last replayed step."""

    policy: LivePolicy
    client: CompletionClient


class RecordedEpisode:
    """One recording, played once. `differences`: in order."""

    def __init__(
        self,
        recorded: Trajectory,
        template: ChatTemplate,
        successor: Successor | None = None,
        steps: int | None = None,
    ) -> None:
        """`steps`: how many recorded steps are replayed; None: all.

        Raises EnvironmentFailure for an episode with branches.
        """
        if recorded.has_branches:
            raise EnvironmentFailure(
                f"episode {recorded.episode_id} has branches and cannot be replayed",
                hint="read its steps in the table steps or on the dashboard",
            )
        self.differences: list[Difference] = []
        self.recorded = recorded
        self.steps = recorded.steps[:steps]
        self.played = 0  # steps
        self.succeeded = False  # whether who goes on has begun
        self._rewards: list[float] = []  # of the turns so far
        self._template = template
        self._successor = successor
        self._whole = len(self.steps) == len(recorded.steps)
        self._gaps = _gaps(recorded, len(self.steps))

    def live(self) -> Sequence[LivePolicy]:
        """Return the policy that sampled the next step, or the one that continues."""
        if self.played < len(self.steps):
            used = self.recorded.policies[self.steps[self.played].policy_index]
            return [LivePolicy(used.server_id, "", used.track, used.checkpoint_id, used.version)]
        return [self._successor.policy] if self._successor else []

    def refresh(self, timeout_s: float = 1.0) -> None:
        """Do nothing: a recording does not change."""

    def complete(self, policy: LivePolicy, ask: Ask, *, timeout_s: float) -> Completion:
        """Return the recorded tokens of the next step, then those of the new policy."""
        if self.played == len(self.steps):
            return self._next().complete(policy, ask, timeout_s=timeout_s)
        step, body = self.steps[self.played], self.recorded
        self.played += 1
        return Completion(
            token_ids=body.tokens()[step.start : step.end].tolist(),
            logprobs=body.behaviour()[step.start : step.end].tolist(),
            finish_reason=step.finish_reason,
            masked=body.policies[step.policy_index].masked,
        )

    def post(
        self, policy: LivePolicy, path: str, body: Mapping[str, Any], timeout_s: float
    ) -> bytes:
        """Ask the new policy, if it is one that takes messages."""
        return self._next().post(policy, path, body, timeout_s)

    def converse(
        self, template: ChatTemplate, tools: Sequence[Tool], first: Sequence[Message]
    ) -> Conversation:
        """Return a conversation that uses the recorded tokens up to the end of the tape."""
        return _RecordedConversation(self, template, tools, first)

    def compared(self, environment: Environment) -> "ComparingEnvironment":
        """Return a fresh environment that gets the recorded calls up to the end of the tape."""
        return ComparingEnvironment(self, environment)

    def calls(self, parsed: Sequence[ToolCall] | str) -> Sequence[ToolCall] | str:
        """Return the recorded calls of this turn.

        `parsed`: the calls parsed from its tokens today.
        """
        step = self.steps[self.played - 1]
        if (text := _calls_text(parsed)) == step.call:
            return parsed
        self._note("call", step.call, text)
        try:
            return msgspec.json.decode(step.call, type=list[ToolCall])
        except msgspec.DecodeError:
            return step.call

    def compare_answer(self, outcome: Outcome) -> None:
        """Compare the answer to this turn; return its messages as tokens."""
        body, step = self.recorded, self.steps[self.played - 1]
        self._rewards.append(outcome.reward)
        answer = "\n".join(message.content for message in outcome.messages)[:ANSWER_KEPT]
        if answer != step.answer:
            self._note("messages", step.answer, answer)
        last = self._whole and self.played == len(self.steps)
        limited = last and body.status == Status.TASK_LIMIT  # turns ran out, or it said so itself
        if outcome.done != last and not limited:
            self._note("done", str(last), str(outcome.done))
        if not (last or outcome.done):
            return
        ended = outcome if outcome.done else Outcome((), status=Status.TASK_LIMIT)
        ended = dataclasses.replace(ended, reward=math.fsum(self._rewards))
        then = {"status": body.status, "reward": body.environment_reward, "score": body.score}
        for field, before in then.items():
            now = getattr(ended, field)
            if before != now:
                self._note(field, str(before), str(now))

    def recorded_context(self, start: int, rendered: Sequence[int]) -> Sequence[int]:
        """Return the recorded unsampled tokens at `start`, or else those rendered today."""
        if self.succeeded or start not in self._gaps:
            return rendered
        recorded: list[int] = self.recorded.tokens()[start : self._gaps[start]].tolist()
        is_noted = any(each.step == self.played - 1 for each in self.differences)
        if recorded != list(rendered) and not is_noted:
            self._note("messages", self._template.decode(recorded), self._template.decode(rendered))
        return recorded

    def _next(self) -> CompletionClient:
        if self._successor is None:
            raise EnvironmentFailure(
                f"the episode did not end after its {len(self.steps)} recorded steps"
            )
        self.succeeded = True
        return self._successor.client

    def _note(self, field: str, recorded: str, found: str) -> None:
        self.differences.append(Difference(self.played - 1, field, recorded, found))


class ComparingEnvironment:
    """An Environment that wraps a fresh one and compares it."""

    def __init__(self, recorded_episode: RecordedEpisode, inner: Environment) -> None:
        self._recorded_episode, self._inner = recorded_episode, inner

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self._inner.tools

    def start(self) -> Observation:
        return self._inner.start()

    def sampled(
        self,
        prompt: int,
        completion: int,
        finish_reason: str,
        tokens: Sequence[TokenLogprob] | None,
    ) -> None:
        """See agentrl.envs.contract.Counting."""
        if is_counting(self._inner):
            self._inner.sampled(prompt, completion, finish_reason, tokens)

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if self._recorded_episode.succeeded:
            return self._inner.call(calls)
        outcome = self._inner.call(self._recorded_episode.calls(calls))
        self._recorded_episode.compare_answer(outcome)
        return outcome

    def close(self) -> None:
        self._inner.close()


class _RecordedConversation(Conversation):
    """A conversation that uses recorded tokens wherever it would add its own."""

    def __init__(
        self,
        recorded_episode: RecordedEpisode,
        template: ChatTemplate,
        tools: Sequence[Tool],
        first: Sequence[Message],
    ) -> None:
        self._recorded_episode = recorded_episode
        super().__init__(template, tools, first)

    def _append(self, token_ids: Sequence[int]) -> None:
        super()._append(self._recorded_episode.recorded_context(len(self), token_ids))


def _calls_text(calls: Sequence[ToolCall] | str) -> str:
    """Return messages in the form of a step record."""
    return calls if isinstance(calls, str) else msgspec.json.encode(calls).decode()


def _gaps(body: Trajectory, steps: int) -> Mapping[int, int]:
    """Return where unsampled tokens begin and end before step `steps`."""
    starts = [*(step.start for step in body.steps), len(body)]
    ends = [0, *(step.end for step in body.steps)]
    spans = zip(ends[: steps + 1], starts[: steps + 1], strict=True)
    return {end: start for end, start in spans if end < start}
