"""The episode loop: policy and environment take turns until one of them ends the episode.

    env.start() ─▶ conversation ─▶ sample (policy_calls.py) ─▶ journal ─▶ calls ─▶ env.call() ─┐
                        ▲               │ the policy aborted                                   │
                        ├──── its span ◀┘                                                      │
                        └────────────────────── observation ◀──────────────────────────────────┘

consumes  completions of policies, answers of the environment; the steps that a former attempt
          recorded, which it repeats instead of sampling them
produces  the trajectory; each sampled step, to the journal
waits for policies and the environment, until the attempt's deadline, and for the journal

This module knows no queue, no database and no Celery.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from agentrl.core.errors import AgentRLError
from agentrl.core.journal import SampledStep
from agentrl.core.telemetry import metrics, tracing
from agentrl.core.trajectory import PolicyRef, StepRecord, Trajectory
from agentrl.core.types import ABORT, Status
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.envs.contract import (
    Environment,
    Message,
    Outcome,
    TokenLogprob,
    TurnTerms,
    is_counting,
)
from agentrl.workers.attempt_errors import PromptTooLong
from agentrl.workers.conversation.branches import Branches
from agentrl.workers.conversation.conversation import Conversation
from agentrl.workers.conversation.traced_messages import TracedMessages
from agentrl.workers.conversation.trajectory_builder import TrajectoryBuilder
from agentrl.workers.episode_context import EpisodeContext, EpisodeLimits
from agentrl.workers.policies.client import Completion
from agentrl.workers.policies.pool import Sampler
from agentrl.workers.policy_calls import PolicyCalls, StepPrompt
from agentrl.workers.turn import apply_turn, end_at_stop, require_trainable

ANSWER_KEPT = 2000  # characters of an environment's answer that a step record keeps


class ReplayDiverged(AgentRLError):
    """An environment made anew does not answer the recorded actions as it did before."""


class StepJournal(Protocol):
    """The steps of an attempt: those recorded by former attempts, then its own.

    `remaining`: how many recorded steps are not repeated yet.
    """

    @property
    def remaining(self) -> int: ...

    def next_recorded(self) -> SampledStep | None:
        """Return the next recorded step, once; None: the next one must be sampled."""

    def append(self, record: SampledStep, /) -> None:
        """Store a sampled step, and return when it is stored."""


class EpisodeLoop:
    """Runs one attempt at one item. Single use, one thread."""

    _policy_calls: PolicyCalls  # since `run`
    _journal: StepJournal | None

    def __init__(
        self,
        claimed: ClaimedEpisode,
        run_id: str,
        env: Environment,
        sampler: Sampler,
        context: EpisodeContext,
    ) -> None:
        self._claimed = claimed
        self._env = env
        self._sampler = sampler
        self._context = context
        first = env.start()  # a task may know its tools only then
        self._terms: TurnTerms = first.terms
        self._branches = Branches(
            context.converse, context.template, context.style, env.tools, first.messages
        )
        self._steps = TrajectoryBuilder(
            claimed, run_id, self._branches, context.sampling.max_tokens
        )
        self._traced = TracedMessages(first.messages, context.template, context.style)

    def run(self, limits: EpisodeLimits, journal: StepJournal | None = None) -> Trajectory:
        """Run steps until the environment is done, or the turn or token limit is reached.

        Raises EnvironmentFailure, PolicyError, NoLivePolicy, OutOfTime, EpisodeStopped,
        ReplayDiverged, what the journal raises, and PromptTooLong if no step fits; the attempt is
        then discarded.
        """
        self._journal = journal
        if self._room() <= 0:
            raise PromptTooLong(
                f"sampling.max_tokens: the first prompt of {self._claimed.task} "
                f"{self._claimed.item_id} alone has {len(self._conversation)} tokens",
                hint=f"raise sampling.max_tokens above {self._context.sampling.max_tokens}",
            )
        started = self._claimed.started_at or self._context.clock()
        self._policy_calls = PolicyCalls(self._claimed, self._sampler, self._context, limits)
        outcome = Outcome((), done=True, status=Status.TASK_LIMIT)
        self._traced.begin()
        for _ in range(limits.max_turns):
            if self._room() <= 0:
                break
            with tracing.span("step"):
                answer = self._turn()
            if answer.done:
                self._require_repeated()
                outcome = answer
                break
            self._branches.observe(answer, self._env.tools)
            self._traced.observe(answer.messages)
            self._terms = answer.terms
            outcome = dataclasses.replace(outcome, metrics=answer.metrics)
        require_trainable(outcome)
        self._branches.require_turns(outcome.branch_rewards)
        return self._steps.build(outcome, started, self._context.clock(), self._metrics())

    def messages(self) -> list[Message]:
        """Return the conversation of the last branch, up to the turn that ended the episode."""
        return self._conversation.history(to_the_end=True)

    def _turn(self) -> Outcome:
        """Run one turn: a policy call and the answer to it. If a policy aborts, others continue."""
        turn: list[int] = []  # its tokens, of all policies
        while (span := self._span(turn)).finish_reason == ABORT:
            self._steps.add(span)
        self._branches.end_turn()
        sampled_at = time.perf_counter()
        if is_counting(self._env):
            before = len(self._conversation) - len(turn)
            self._env.sampled(before, len(turn), span.finish_reason, self._tokens(turn))
        with tracing.span("environment") as fields:
            calls, outcome = apply_turn(
                turn, self._env, self._context.template, self._context.style
            )
            fields.update(self._traced.environment_fields(calls, outcome))
        env_s = time.perf_counter() - sampled_at
        metrics.ENV_CALL.labels(task=self._claimed.task).observe(env_s)
        self._steps.add(
            msgspec.structs.replace(
                span,
                env_s=env_s,
                call=calls if isinstance(calls, str) else msgspec.json.encode(calls).decode(),
                answer="\n".join(message.content for message in outcome.messages)[:ANSWER_KEPT],
                reward=0.0 if outcome.done else outcome.reward,
            )
        )
        return outcome

    def _tokens(self, turn: Sequence[int]) -> list[TokenLogprob] | None:
        """Return the tokens of a turn if the environment asks for them and they are in the loss."""
        logprobs = self._conversation.turn_logprobs() if self._terms.logprobs else None
        if logprobs is None:
            return None
        ended = bool(turn) and turn[-1] in self._context.template.stop_ids
        pieces = self._context.template.pieces(turn[:-1] if ended else turn)
        return list(map(TokenLogprob, pieces, logprobs))

    @property
    def _conversation(self) -> Conversation:
        return self._branches.current

    def _span(self, turn: list[int]) -> StepRecord:
        """Run one policy call and append it to the conversation and the turn."""
        self._policy_calls.check()
        if self._journal and (recorded := self._journal.next_recorded()):
            return self._repeat(recorded, turn)
        requested_at, began = self._context.clock(), time.perf_counter()
        redrawn = self._policy_calls.redrawn
        prompt = StepPrompt(
            token_ids=self._conversation.prompt(),
            conversation=self._conversation,
            tools=self._env.tools,
            max_tokens=self._room(turn),
            continues_turn=bool(turn),
        )
        with tracing.span("policy") as fields:
            policy, completion = self._policy_calls.sample(prompt)
            completion = end_at_stop(completion, turn, self._terms.stop, self._context.template)
            fields |= {"track": policy.track, "version": policy.version}
            fields |= {"model": policy.checkpoint_id, "input_tokens": len(prompt.token_ids)}
            fields["output_tokens"] = len(completion.token_ids)
            fields.update(self._traced.policy_fields(turn, completion, self._env.tools))
        policy_s = time.perf_counter() - began
        metrics.POLICY_CALL.labels(track=policy.track).observe(policy_s)
        index = self._steps.policy_index(_reference(policy, masked=completion.masked))
        masked = completion.masked or not self._terms.trained
        start, end = self._conversation.append_sampled(
            completion.token_ids, completion.logprobs, index, masked=masked
        )
        turn += completion.token_ids
        step = StepRecord(
            policy_index=index,
            start=start,
            end=end,
            prompt_tokens=len(prompt.token_ids),
            temperature=self._context.sampling.temperature,
            requested_at=requested_at,
            policy_s=policy_s,
            env_s=0.0,
            finish_reason=self._finish_reason(completion, turn),
            call="",
            answer="",
            redrawn=self._policy_calls.redrawn - redrawn,
            trained=self._terms.trained,
        )
        self._append_to_journal(step)
        return step

    def _append_to_journal(self, step: StepRecord) -> None:
        """Store a sampled step in the journal, before its action takes effect."""
        if self._journal is None:
            return
        waiting_since = self._context.monotonic()
        conversation = self._conversation
        self._journal.append(
            SampledStep(
                step=step,
                policy=self._steps.policy(step.policy_index),
                context=conversation.tokens(self._steps.last_end(), step.start),
                token_ids=conversation.tokens(step.start, step.end),
                logprobs=conversation.logprobs(step.start, step.end),
            )
        )
        self._policy_calls.extend_deadline(self._context.monotonic() - waiting_since)

    def _repeat(self, recorded: SampledStep, turn: list[int]) -> StepRecord:
        """Append a recorded step to the conversation and the turn.

        Raises ReplayDiverged unless the tokens before it are those that stood there.
        """
        number, start = len(self._steps), len(self._conversation)
        if self._conversation.tokens(self._steps.last_end(), start) != recorded.context:
            what = f"answer to step {number - 1}" if number else "first prompt"
            raise ReplayDiverged(f"the environment gave another {what}")
        policy, tokens = recorded.policy, recorded.tokens()
        index = self._steps.policy_index(policy)
        masked = policy.masked or not recorded.step.trained
        start, end = self._conversation.append_sampled(
            tokens, recorded.behaviour(), index, masked=masked
        )
        turn += tokens
        self._traced.repeat(tokens)
        return msgspec.structs.replace(recorded.step, policy_index=index, start=start, end=end)

    def _require_repeated(self) -> None:
        """Raise ReplayDiverged if the episode ended before its recorded steps did."""
        if self._journal is not None and self._journal.remaining:
            raise ReplayDiverged(f"the environment ended the episode at step {len(self._steps)}")

    def _finish_reason(self, completion: Completion, turn: Sequence[int]) -> str:
        """Return how a span ended; an abort at the end of a turn does not count as one."""
        if completion.finish_reason != ABORT:
            return completion.finish_reason
        if turn[-1] in self._context.stop_ids:
            return "stop"
        return ABORT if self._room(turn) > 0 else "length"

    def _room(self, turn: Sequence[int] = ()) -> int:
        """Return how many more tokens may be sampled in this turn."""
        sampling = self._context.sampling
        most = min(sampling.max_step_tokens, self._terms.max_tokens or sampling.max_step_tokens)
        return min(most - len(turn), sampling.max_tokens - len(self._conversation))

    def _metrics(self) -> dict[str, float]:
        """Return the sampling metrics: replaced policies, track weights."""
        weights = {f"weight/{track}": weight for track, weight in self._sampler.weights().items()}
        redrawn = self._policy_calls.redrawn
        return weights | ({"redrawn": float(redrawn)} if redrawn else {})


def _reference(policy: LivePolicy, *, masked: bool) -> PolicyRef:
    return PolicyRef(
        checkpoint_id=policy.checkpoint_id,
        version=policy.version,
        track=policy.track,
        server_id=policy.server_id,
        trainable=not masked,
    )
