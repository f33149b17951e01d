"""The episode: policy and environment in turn, until one of them ends it.

    env.start() ─▶ conversation ─▶ draw a policy ─▶ sample ─▶ parse calls ─▶ env.call() ─┐
                        ▲              ▲              │ broke off                         │
                        │              └── its span ◀─┘                                   │
                        └────────────────────── observation ◀───────────────────────────┘

No queue, no database, no Celery here: only its collaborators.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from agentrl.core.config import Sampling
from agentrl.core.errors import AgentRLError, ConfigError, PolicyError
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics, tracing
from agentrl.core.trajectory import PolicyRef, StepRecord, Trajectory
from agentrl.core.types import ABORT, Status
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.transitions.episodes import Claimed
from agentrl.envs.contract import Counting, Environment, Outcome
from agentrl.workers.conversation.conversation import Conversation, Converse
from agentrl.workers.conversation.interpreter import Interpreter
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style
from agentrl.workers.policies.client import Ask, Completes, Completion, NotServed
from agentrl.workers.policies.pool import NoLivePolicy, Sampler
from agentrl.workers.turn import act, of_agent

ANSWER_KEPT = 2000  # characters of an environment's answer that a step record keeps
REDRAW_S, LONGEST_REDRAW_S = 0.05, 0.5  # between a refusal and the next draw, doubled each time

log = get_logger()


class OutOfTime(AgentRLError):
    """The attempt's own deadline passed: an infrastructure failure, never a reward."""


class Stopped(AgentRLError):
    """The process was told to stop; the episode is given back."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one attempt. `deadline_s`: wall clock; `policy_wait_s`: for one step's policy.

    `completion_timeout_s`: for one completion, within the deadline.
    """

    max_turns: int
    deadline_s: float
    policy_wait_s: float
    completion_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Kit:
    """What every episode of a process shares. `clock`: seconds, the database's."""

    template: ChatTemplate
    style: Style
    stop_ids: Sequence[int]
    sampling: Sampling
    client: Completes
    clock: Callable[[], float]
    stop: threading.Event
    converse: Converse = Conversation


class EpisodeLoop:
    """One attempt at one item; single use, one thread."""

    def __init__(
        self, claimed: Claimed, run_id: str, env: Environment, sampler: Sampler, kit: Kit
    ) -> None:
        self._claimed = claimed
        self._run_id = run_id
        self._env = env
        self._sampler = sampler
        self._kit = kit
        first = env.start().messages  # a task may know its tools only then
        self._conversation = kit.converse(kit.template, env.tools, first)
        self._deadline = 0.0
        self._redrawn = 0
        self._policies: list[PolicyRef] = []
        self._steps: list[StepRecord] = []

    def run(self, limits: Limits) -> Trajectory:
        """Steps until the environment is done or turns or tokens run out.

        Raises EnvironmentFailure, PolicyError, OutOfTime, Stopped, ConfigError where no step has
        room; nothing of the attempt is kept.
        """
        if self._room() <= 0:
            raise ConfigError(
                f"sampling.max_tokens: the first prompt of {self._claimed.task} "
                f"{self._claimed.item_id} alone has {len(self._conversation)} tokens",
                hint=f"more than {self._kit.sampling.max_tokens}",
            )
        started, self._deadline = self._kit.clock(), time.monotonic() + limits.deadline_s
        outcome = Outcome((), done=True, status=Status.TASK_LIMIT)
        for _ in range(limits.max_turns):
            if self._room() <= 0:
                break
            with tracing.span("step"):
                answer = self._turn(limits)
            if answer.done:
                outcome = of_agent(answer)
                break
            self._conversation.observe(answer.messages)
        return self._trajectory(outcome, started)

    def _turn(self, limits: Limits) -> Outcome:
        """A policy call and the environment's answer; others go on where a policy broke off."""
        said: list[int] = []
        while (span := self._span(said, limits)).finish_reason == ABORT:
            self._steps.append(span)
        sampled = time.perf_counter()
        if isinstance(self._env, Counting):
            before = len(self._conversation) - len(said)
            self._env.sampled(before, len(said), span.finish_reason)
        with tracing.span("environment"):
            calls, outcome = act(said, self._env, self._kit.template, self._kit.style)
        env_s = time.perf_counter() - sampled
        metrics.ENV_CALL.observe(env_s, task=self._claimed.task)
        self._steps.append(
            msgspec.structs.replace(
                span,
                env_s=env_s,
                call=calls if isinstance(calls, str) else msgspec.json.encode(calls).decode(),
                answer="\n".join(message.content for message in outcome.messages)[:ANSWER_KEPT],
            )
        )
        return outcome

    def _span(self, said: list[int], limits: Limits) -> StepRecord:
        """One policy call, appended to the conversation and to what the turn has said so far."""
        self._check(limits)
        requested_at, began = self._kit.clock(), time.perf_counter()
        prompt, redrawn = self._conversation.prompt(), self._redrawn
        with tracing.span("policy") as fields:
            policy, completion = self._sample(prompt, said, limits)
            fields |= {"track": policy.track, "version": policy.version}
        policy_s = time.perf_counter() - began
        metrics.POLICY_CALL.observe(policy_s, track=policy.track)
        index = self._index(policy, masked=completion.masked)
        start, end = self._conversation.sampled(
            completion.token_ids, completion.logprobs, index, masked=completion.masked
        )
        said += completion.token_ids
        return StepRecord(
            policy_index=index,
            start=start,
            end=end,
            prompt_tokens=len(prompt),
            temperature=self._kit.sampling.temperature,
            requested_at=requested_at,
            policy_s=policy_s,
            env_s=0.0,
            finish_reason=self._end(completion, said),
            call="",
            answer="",
            redrawn=self._redrawn - redrawn,
        )

    def _end(self, completion: Completion, said: Sequence[int]) -> str:
        """How a span ended; one that broke off where its turn ends anyway did not break off."""
        if completion.finish_reason != ABORT:
            return completion.finish_reason
        if said[-1] in self._kit.stop_ids:
            return "stop"
        return ABORT if self._room(said) > 0 else "length"

    def _check(self, limits: Limits) -> None:
        if self._kit.stop.is_set():
            raise Stopped("the worker is stopping")
        if time.monotonic() > self._deadline:
            raise OutOfTime(f"episode {self._claimed.episode_id}: over {limits.deadline_s} s")

    def _sample(
        self, prompt: list[int], said: Sequence[int], limits: Limits
    ) -> tuple[LivePolicy, Completion]:
        """A completion of the policy drawn; one that refuses or died is replaced at this step.

        `said`: the turn's tokens so far; only a policy that reads tokens can go on with them. What
        completions take is no wait for a policy.
        """
        deadline, pause_s = time.monotonic() + limits.policy_wait_s, REDRAW_S
        while True:
            wait_s = max(0.0, deadline - time.monotonic())
            policy = self._drawn(wait_s, exact=bool(said))
            ask = Ask(
                prompt=prompt,
                max_tokens=self._room(said),
                temperature=self._kit.sampling.temperature,
                stop_ids=self._kit.stop_ids,
                seed=self._sampler.seed(),
                session=f"{self._claimed.episode_id}/{self._claimed.fence}",
            )
            asked = time.monotonic()
            try:
                left = max(1.0, self._deadline - asked)
                completion = self._asked(policy, ask, min(limits.completion_timeout_s, left))
            except NotServed as error:
                self._check(limits)
                deadline += time.monotonic() - asked
                if time.monotonic() > deadline or self._kit.stop.is_set():
                    raise
                self._replaced(policy, error)
                self._kit.stop.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_REDRAW_S)
            else:
                self._sampler.sampled(len(prompt) + len(completion.token_ids))
                return policy, completion

    def _drawn(self, wait_s: float, *, exact: bool) -> LivePolicy:
        """Raises NoLivePolicy at the first step, which costs no attempt; PolicyError later."""
        try:
            return self._sampler.draw(wait_s=wait_s, stop=self._kit.stop, exact=exact)
        except NoLivePolicy as error:
            if not self._steps:
                raise
            raise PolicyError(
                f"after {len(self._steps)} steps: {error}", hint=error.hint
            ) from error

    def _asked(self, policy: LivePolicy, ask: Ask, timeout_s: float) -> Completion:
        """Tokens of ours for tokens of ours; a policy that reads none is sent the messages."""
        if policy.exact:
            return self._kit.client.complete(policy, ask, timeout_s=timeout_s)
        kit = self._kit
        interpreter = Interpreter(kit.client, kit.template, kit.style, self._env.tools)
        return interpreter.complete(policy, self._conversation.history(), ask, timeout_s)

    def _replaced(self, policy: LivePolicy, error: NotServed) -> None:
        """Another policy is drawn for this step, and everybody can see it."""
        self._redrawn += 1
        metrics.REDRAWS.add()
        log.info(
            "policy replaced",
            server_id=policy.server_id,
            track=policy.track,
            checkpoint_id=policy.checkpoint_id,
            error=str(error),
        )
        self._sampler.failed()

    def _room(self, said: Sequence[int] = ()) -> int:
        """Tokens that a policy may sample for the turn that has said so much."""
        sampling = self._kit.sampling
        in_turn = sampling.max_step_tokens - len(said)
        return min(in_turn, sampling.max_tokens - len(self._conversation))

    def _index(self, policy: LivePolicy, *, masked: bool) -> int:
        """The policy's place in the table of those used."""
        reference = PolicyRef(
            checkpoint_id=policy.checkpoint_id,
            version=policy.version,
            track=policy.track,
            server_id=policy.server_id,
            trainable=not masked,
        )
        if reference not in self._policies:
            self._policies.append(reference)
        return self._policies.index(reference)

    def _trajectory(self, outcome: Outcome, started: float) -> Trajectory:
        arrays = self._conversation.arrays()
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
            reward=outcome.reward,
            score=outcome.score,
            token_ids=arrays.token_ids,
            loss_mask=arrays.loss_mask,
            logprobs=arrays.logprobs,
            policy_index=arrays.policy_index,
            policies=tuple(self._policies),
            steps=tuple(self._steps),
            started_at=started,
            finished_at=self._kit.clock(),
            metrics=dict(outcome.metrics) | self._metrics(),
        )

    def _metrics(self) -> dict[str, float]:
        """What sampling says about itself: policies replaced, weights drawn by."""
        weights = self._sampler.weights()
        metrics = {f"weight/{track}": weight for track, weight in weights.items()}
        return metrics | ({"redrawn": float(self._redrawn)} if self._redrawn else {})
