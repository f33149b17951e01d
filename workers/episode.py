"""The episode loop: policy and environment take turns until one of them ends the episode.

    env.start() ─▶ conversation ─▶ draw a policy ─▶ sample ─▶ journal ─▶ calls ─▶ env.call() ─┐
                        ▲              ▲              │ broke off                              │
                        │              └── its span ◀─┘                                        │
                        └────────────────────── observation ◀────────────────────────────────┘

Steps that a former attempt recorded are repeated instead of sampled.

This module knows no queue, no database and no Celery.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from agentrl.core.config.sections import Sampling, Task, Worker
from agentrl.core.errors import AgentRLError, ConfigError
from agentrl.core.journal import SampledStep
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics, tracing
from agentrl.core.trajectory import PolicyRef, StepRecord, Trajectory
from agentrl.core.types import ABORT, Status
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.envs.contract import Counting, Environment, Message, Outcome, TurnTerms
from agentrl.workers.conversation.branches import Branches
from agentrl.workers.conversation.conversation import Conversation, Converse
from agentrl.workers.conversation.interpreter import Interpreter
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style
from agentrl.workers.policies.client import (
    Ask,
    CheckpointNotServed,
    Completion,
    CompletionClient,
    Unreachable,
)
from agentrl.workers.policies.pool import NoLivePolicy, Sampler
from agentrl.workers.turn import apply_turn, checked_outcome, checked_reward, end_at_stop
from agentrl.workers.waiting import WaitingAttempts

ANSWER_KEPT = 2000  # characters of an environment's answer that a step record keeps
REDRAW_S, LONGEST_REDRAW_S = 0.05, 0.5  # between a refusal and the next draw, doubled each time

log = get_logger()


class OutOfTime(AgentRLError):
    """The deadline of the attempt has passed: an infrastructure failure, never a reward."""


class EpisodeStopped(AgentRLError):
    """The process was told to stop; the episode is given back."""


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

    def append(self, step: SampledStep) -> None:
        """Store a sampled step, and return when it is stored."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of one attempt. `policy_wait_s`: wait for a policy per step.

    `deadline_s`: wall clock, without such waits.
    `completion_timeout_s`: for one completion, within the deadline.
    """

    max_turns: int
    deadline_s: float
    policy_wait_s: float
    completion_timeout_s: float = 600.0

    @classmethod
    def of(
        cls, worker: Worker, task: Task, most: int, horizon: int | None = None
    ) -> "EpisodeLimits":
        """Return the configured limits. `most`: turns of a task that configures none.

        `horizon`: turns of the episode's group, if it has fewer.
        """
        turns = task.max_turns or most
        return cls(
            max_turns=min(turns, horizon or turns),
            deadline_s=worker.attempt_deadline_s,
            policy_wait_s=worker.policy_wait_s,
            completion_timeout_s=worker.completion_timeout_s,
        )


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """Objects that all episodes of a process share. `clock`: the database's, in seconds.

    `waiting`: attempts that wait for a policy. `monotonic`: the machine's clock, in seconds.
    """

    template: ChatTemplate
    style: Style
    stop_ids: Sequence[int]
    sampling: Sampling
    client: CompletionClient
    clock: Callable[[], float]
    stop: threading.Event
    converse: Converse = Conversation
    waiting: WaitingAttempts = field(default_factory=WaitingAttempts)
    monotonic: Callable[[], float] = time.monotonic


class EpisodeLoop:
    """Runs one attempt at one item. Single use, one thread."""

    def __init__(
        self,
        claimed: ClaimedEpisode,
        run_id: str,
        env: Environment,
        sampler: Sampler,
        context: EpisodeContext,
    ) -> None:
        self._claimed = claimed
        self._run_id = run_id
        self._env = env
        self._sampler = sampler
        self._context = context
        first = env.start()  # a task may know its tools only then
        self._terms: TurnTerms = first.terms
        self._branches = Branches(
            context.converse, context.template, context.style, env.tools, first.messages
        )
        self._deadline = 0.0
        self._redrawn = 0
        self._policies: list[PolicyRef] = []
        self._steps: list[tuple[int, StepRecord]] = []  # with their branches
        self._journal: StepJournal | None = None

    def run(self, limits: EpisodeLimits, journal: StepJournal | None = None) -> Trajectory:
        """Run steps until the environment is done, or the turn or token limit is reached.

        Raises EnvironmentFailure, PolicyError, NoLivePolicy, OutOfTime, Stopped, ReplayDiverged,
        what the journal raises, and ConfigError if no step fits; the attempt is then discarded.
        """
        self._journal = journal
        if self._room() <= 0:
            raise ConfigError(
                f"sampling.max_tokens: the first prompt of {self._claimed.task} "
                f"{self._claimed.item_id} alone has {len(self._conversation)} tokens",
                hint=f"raise sampling.max_tokens above {self._context.sampling.max_tokens}",
            )
        started = self._claimed.started_at or self._context.clock()
        self._deadline = self._context.monotonic() + limits.deadline_s
        outcome = Outcome((), done=True, status=Status.TASK_LIMIT)
        for _ in range(limits.max_turns):
            if self._room() <= 0:
                break
            with tracing.span("step"):
                answer = self._turn(limits)
            if answer.done:
                self._require_repeated()
                outcome = checked_outcome(answer)
                break
            self._branches.observe(answer, self._env.tools)
            self._terms = answer.terms
        return self._trajectory(outcome, started)

    def messages(self) -> list[Message]:
        """Return the conversation of the last branch, up to the turn that ended the episode."""
        return self._conversation.history(to_the_end=True)

    def _turn(self, limits: EpisodeLimits) -> Outcome:
        """Run one turn: a policy call and the environment's answer. If a policy aborts, others
        continue.
        """
        said: list[int] = []
        while (span := self._span(said, limits)).finish_reason == ABORT:
            self._keep(span)
        self._branches.end_turn()
        sampled = time.perf_counter()
        if isinstance(self._env, Counting):
            before = len(self._conversation) - len(said)
            self._env.sampled(before, len(said), span.finish_reason)
        with tracing.span("environment"):
            calls, outcome = apply_turn(
                said, self._env, self._context.template, self._context.style
            )
        env_s = time.perf_counter() - sampled
        metrics.ENV_CALL.labels(task=self._claimed.task).observe(env_s)
        self._keep(
            msgspec.structs.replace(
                span,
                env_s=env_s,
                call=calls if isinstance(calls, str) else msgspec.json.encode(calls).decode(),
                answer="\n".join(message.content for message in outcome.messages)[:ANSWER_KEPT],
                reward=0.0 if outcome.done else checked_reward(outcome),
            )
        )
        return outcome

    @property
    def _conversation(self) -> Conversation:
        return self._branches.current

    def _keep(self, span: StepRecord) -> None:
        self._steps.append((self._branches.number, span))

    def _span(self, said: list[int], limits: EpisodeLimits) -> StepRecord:
        """Run one policy call and append it to the conversation and the turn."""
        self._check(limits)
        if self._journal and (recorded := self._journal.next_recorded()):
            return self._repeat(recorded, said)
        requested_at, began = self._context.clock(), time.perf_counter()
        prompt, redrawn = self._conversation.prompt(), self._redrawn
        with tracing.span("policy") as fields:
            policy, completion = self._sample(prompt, said, limits)
            completion = end_at_stop(completion, said, self._terms.stop, self._context.template)
            fields |= {"track": policy.track, "version": policy.version}
            fields |= {"model": policy.checkpoint_id, "input_tokens": len(prompt)}
            fields["output_tokens"] = len(completion.token_ids)
        policy_s = time.perf_counter() - began
        metrics.POLICY_CALL.labels(track=policy.track).observe(policy_s)
        index = self._index(policy, masked=completion.masked)
        masked = completion.masked or not self._terms.trained
        start, end = self._conversation.sampled(
            completion.token_ids, completion.logprobs, index, masked=masked
        )
        said += completion.token_ids
        step = StepRecord(
            policy_index=index,
            start=start,
            end=end,
            prompt_tokens=len(prompt),
            temperature=self._context.sampling.temperature,
            requested_at=requested_at,
            policy_s=policy_s,
            env_s=0.0,
            finish_reason=self._end(completion, said),
            call="",
            answer="",
            redrawn=self._redrawn - redrawn,
            trained=self._terms.trained,
        )
        self._record(step)
        return step

    def _record(self, step: StepRecord) -> None:
        """Store a sampled step in the journal, before its action takes effect."""
        if self._journal is None:
            return
        waiting_since = self._context.monotonic()
        conversation = self._conversation
        self._journal.append(
            SampledStep(
                step=step,
                policy=self._policies[step.policy_index],
                context=conversation.tokens(self._last_end(), step.start),
                token_ids=conversation.tokens(step.start, step.end),
                logprobs=conversation.logprobs(step.start, step.end),
            )
        )
        self._deadline += self._context.monotonic() - waiting_since

    def _repeat(self, recorded: SampledStep, said: list[int]) -> StepRecord:
        """Append a recorded step to the conversation and the turn.

        Raises ReplayDiverged unless the tokens before it are those that stood there.
        """
        number, start = len(self._steps), len(self._conversation)
        if self._conversation.tokens(self._last_end(), start) != recorded.context:
            what = f"answer to step {number - 1}" if number else "first prompt"
            raise ReplayDiverged(f"the environment gave another {what}")
        policy, tokens = recorded.policy, recorded.tokens()
        index = self._policy_index(policy)
        masked = policy.masked or not recorded.step.trained
        start, end = self._conversation.sampled(tokens, recorded.behaviour(), index, masked=masked)
        said += tokens
        return msgspec.structs.replace(recorded.step, policy_index=index, start=start, end=end)

    def _last_end(self) -> int:
        """Return where the sampled tokens of the branch's last step end."""
        number = self._branches.number
        return max((step.end for branch, step in self._steps if branch == number), default=0)

    def _require_repeated(self) -> None:
        """Raise ReplayDiverged if the episode ended before its recorded steps did."""
        if self._journal is not None and self._journal.remaining:
            raise ReplayDiverged(f"the environment ended the episode at step {len(self._steps)}")

    def _end(self, completion: Completion, said: Sequence[int]) -> str:
        """Return how a span ended; an abort at the end of a turn does not count as one."""
        if completion.finish_reason != ABORT:
            return completion.finish_reason
        if said[-1] in self._context.stop_ids:
            return "stop"
        return ABORT if self._room(said) > 0 else "length"

    def _check(self, limits: EpisodeLimits) -> None:
        if self._context.stop.is_set():
            raise EpisodeStopped("the worker is stopping")
        if self._context.monotonic() > self._deadline:
            raise OutOfTime(f"episode {self._claimed.episode_id}: over {limits.deadline_s} s")

    def _sample(
        self, prompt: list[int], said: Sequence[int], limits: EpisodeLimits
    ) -> tuple[LivePolicy, Completion]:
        """Sample a completion; replace a policy that refuses or died.

        `said`: tokens of the turn so far; only a policy that reads tokens can continue them. The
        time of completions does not count as waiting for a policy; waiting for a policy does not
        count toward the attempt's deadline. Raises NoLivePolicy after `policy_wait_s` without one.
        """
        context = self._context
        idle_since = context.monotonic()
        wait_until, pause_s, away = idle_since + limits.policy_wait_s, REDRAW_S, False
        with context.waiting.attempt(self._claimed) as wait_for:
            while True:
                wait_for(None)
                wait_s = max(0.0, wait_until - context.monotonic())
                policy = self._sampler.draw(wait_s=wait_s, stop=context.stop, exact=bool(said))
                asked = context.monotonic()
                self._deadline += asked - idle_since
                wait_for(None if away else policy)
                timeout_s = min(limits.completion_timeout_s, max(1.0, self._deadline - asked))
                try:
                    completion = self._request(policy, self._ask(prompt, said), timeout_s)
                except CheckpointNotServed as error:
                    idle_since = context.monotonic()
                    away = isinstance(error, Unreachable) or not self._sampler.is_live(policy)
                    if away:
                        self._deadline += idle_since - asked
                    else:
                        wait_until += idle_since - asked
                    self._check(limits)
                    if idle_since > wait_until and away:
                        raise NoLivePolicy(str(error), hint=error.hint) from error
                    if idle_since > wait_until:
                        raise
                    self._draw_another(policy, error)
                    context.stop.wait(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_REDRAW_S)
                else:
                    self._sampler.sampled(len(prompt) + len(completion.token_ids))
                    return policy, completion

    def _ask(self, prompt: list[int], said: Sequence[int]) -> Ask:
        return Ask(
            prompt=prompt,
            max_tokens=self._room(said),
            temperature=self._context.sampling.temperature,
            stop_ids=self._context.stop_ids,
            seed=self._sampler.seed(),
            session=f"{self._claimed.episode_id}/{self._claimed.fence}",
        )

    def _request(self, policy: LivePolicy, ask: Ask, timeout_s: float) -> Completion:
        """Send tokens, or messages to a policy that does not read our tokens."""
        if policy.exact:
            return self._context.client.complete(policy, ask, timeout_s=timeout_s)
        context = self._context
        interpreter = Interpreter(context.client, context.template, context.style, self._env.tools)
        return interpreter.complete(policy, self._conversation.history(), ask, timeout_s)

    def _draw_another(self, policy: LivePolicy, error: CheckpointNotServed) -> None:
        """Record that another policy is drawn for this step."""
        self._redrawn += 1
        metrics.REDRAWS.inc()
        log.info(
            "Policy replaced",
            server_id=policy.server_id,
            track=policy.track,
            checkpoint_id=policy.checkpoint_id,
            error=str(error),
        )
        self._sampler.note_failure()

    def _room(self, said: Sequence[int] = ()) -> int:
        """Return how many more tokens may be sampled in this turn."""
        sampling = self._context.sampling
        most = min(sampling.max_step_tokens, self._terms.max_tokens or sampling.max_step_tokens)
        return min(most - len(said), sampling.max_tokens - len(self._conversation))

    def _index(self, policy: LivePolicy, *, masked: bool) -> int:
        """Return the index of the policy in the trajectory's policy table."""
        return self._policy_index(
            PolicyRef(
                checkpoint_id=policy.checkpoint_id,
                version=policy.version,
                track=policy.track,
                server_id=policy.server_id,
                trainable=not masked,
            )
        )

    def _policy_index(self, reference: PolicyRef) -> int:
        if reference not in self._policies:
            self._policies.append(reference)
        return self._policies.index(reference)

    def _trajectory(self, outcome: Outcome, started: float) -> Trajectory:
        arrays, steps = self._branches.flatten(self._steps)
        return Trajectory(
            run_id=self._run_id,
            group_id=self._claimed.group_id,
            episode_id=self._claimed.episode_id,
            member=self._claimed.member,
            attempt=self._claimed.attempt,
            fence=self._claimed.fence,
            task=self._claimed.task,
            item_id=self._claimed.item_id,
            status=outcome.status,
            reward=math.fsum([*(step.reward for step in steps), outcome.reward]),
            score=outcome.score,
            token_ids=arrays.token_ids,
            loss_mask=arrays.loss_mask,
            logprobs=arrays.logprobs,
            policy_index=arrays.policy_index,
            policies=tuple(self._policies),
            steps=tuple(steps),
            started_at=started,
            finished_at=self._context.clock(),
            metrics=dict(outcome.metrics) | self._metrics(),
        )

    def _metrics(self) -> dict[str, float]:
        """Return the sampling metrics: replaced policies, track weights."""
        weights = self._sampler.weights()
        metrics = {f"weight/{track}": weight for track, weight in weights.items()}
        return metrics | ({"redrawn": float(self._redrawn)} if self._redrawn else {})
