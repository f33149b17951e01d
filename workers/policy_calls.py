"""The policy calls of one attempt: each returns the tokens that some live policy samples next.

    Sampler.draw() ─▶ policy ─▶ CompletionClient, or Interpreter if it reads messages ─▶ completion
          ▲                        │ refused, or its server is gone
          └───────── pause ◀───────┘

consumes  the prompt of a step
produces  the policy that answered, and its completion
waits for a live policy, up to `policy_wait_s` a step; this extends the attempt's deadline
ends      with the attempt's deadline, or when the process stops
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.envs.contract import Tool
from agentrl.workers.attempt_errors import EpisodeStopped, OutOfTime
from agentrl.workers.conversation.conversation import Conversation
from agentrl.workers.conversation.message_translation import Interpreter
from agentrl.workers.episode_context import EpisodeContext, EpisodeLimits
from agentrl.workers.policies.client import Ask, CheckpointNotServed, Completion, Unreachable
from agentrl.workers.policies.pool import NoLivePolicy, Sampler

REDRAW_S, LONGEST_REDRAW_S = 0.05, 0.5  # between a refusal and the next draw, doubled each time

log = get_logger()


@dataclass(frozen=True, slots=True)
class StepPrompt:
    """What a policy continues. `max_tokens`: that it may sample.

    `token_ids`: the prompt; `conversation`, `tools`: the same for a policy that reads messages.
    `continues_turn`: the turn has begun; only a policy that reads tokens can continue it.
    """

    token_ids: list[int]
    conversation: Conversation
    tools: Sequence[Tool]
    max_tokens: int
    continues_turn: bool


class PolicyCalls:
    """Calls the policies of one attempt, and keeps the attempt's deadline.

    `redrawn`: how often a policy was replaced by another.
    """

    def __init__(
        self,
        claimed: ClaimedEpisode,
        sampler: Sampler,
        context: EpisodeContext,
        limits: EpisodeLimits,
    ) -> None:
        """The time of the attempt begins now."""
        self.redrawn = 0
        self._claimed = claimed
        self._sampler = sampler
        self._context = context
        self._limits = limits
        self._deadline = context.monotonic() + limits.deadline_s

    def check(self) -> None:
        """Raise EpisodeStopped or OutOfTime if the attempt may not go on."""
        if self._context.stop.is_set():
            raise EpisodeStopped("the worker is stopping")
        if self._context.monotonic() > self._deadline:
            raise OutOfTime(f"episode {self._claimed.episode_id}: over {self._limits.deadline_s} s")

    def extend_deadline(self, seconds: float) -> None:
        """Extend the attempt's deadline by a wait that is not its own."""
        self._deadline += seconds

    def sample(self, prompt: StepPrompt) -> tuple[LivePolicy, Completion]:
        """Sample a completion; replace a policy that refuses or died.

        The time of completions does not count as waiting for a policy; waiting for a policy does
        not count toward the attempt's deadline. Raises NoLivePolicy after `policy_wait_s` without
        one, and what `check` raises.
        """
        context = self._context
        idle_since = context.monotonic()
        wait_until, pause_s, away = idle_since + self._limits.policy_wait_s, REDRAW_S, False
        with context.waiting.attempt(self._claimed) as wait_for:
            while True:
                wait_for(None)
                wait_s = max(0.0, wait_until - context.monotonic())
                policy = self._sampler.draw(
                    wait_s=wait_s, stop=context.stop, exact=prompt.continues_turn
                )
                requested_at = context.monotonic()
                self.extend_deadline(requested_at - idle_since)
                wait_for(None if away else policy)
                try:
                    completion = self._request(policy, prompt, requested_at)
                except CheckpointNotServed as error:
                    idle_since = context.monotonic()
                    away = isinstance(error, Unreachable) or not self._sampler.is_live(policy)
                    if away:
                        self.extend_deadline(idle_since - requested_at)
                    else:
                        wait_until += idle_since - requested_at
                    self.check()
                    if idle_since > wait_until and away:
                        raise NoLivePolicy(str(error), hint=error.hint) from error
                    if idle_since > wait_until:
                        raise
                    self._note_replacement(policy, error)
                    context.stop.wait(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_REDRAW_S)
                else:
                    self._sampler.count_tokens(len(prompt.token_ids) + len(completion.token_ids))
                    return policy, completion

    def _request(self, policy: LivePolicy, prompt: StepPrompt, now: float) -> Completion:
        """Send tokens, or messages to a policy that does not read our tokens."""
        context = self._context
        timeout_s = min(self._limits.completion_timeout_s, max(1.0, self._deadline - now))
        ask = Ask(
            prompt=prompt.token_ids,
            max_tokens=prompt.max_tokens,
            temperature=context.sampling.temperature,
            stop_ids=context.stop_ids,
            seed=self._sampler.seed(),
            session=f"{self._claimed.episode_id}/{self._claimed.fence}",
        )
        if policy.exact:
            return context.client.complete(policy, ask, timeout_s=timeout_s)
        interpreter = Interpreter(context.client, context.template, context.style, prompt.tools)
        return interpreter.complete(policy, prompt.conversation.history(), ask, timeout_s)

    def _note_replacement(self, policy: LivePolicy, error: CheckpointNotServed) -> None:
        """Record that another policy is drawn for this step."""
        self.redrawn += 1
        metrics.REDRAWS.inc()
        log.info(
            "Policy replaced",
            server_id=policy.server_id,
            track=policy.track,
            checkpoint_id=policy.checkpoint_id,
            error=str(error),
        )
        self._sampler.note_failure()
