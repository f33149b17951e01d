"""An agent program as an Environment: its requests are observations, its exit is the outcome.

    start() ─▶ program ─ first request ─▶ Observation, tools
    call(turn) ─▶ reply ─▶ program ─ next request ─▶ messages, the turn that they follow
                                   └─ exit 0 ─▶ the user's reward ─▶ done

Requests that wait at the same time are answered one after the other. A mistake of the policy (a
call that does not fit its tool) is answered here; the program never sees it. A failure of the
program (an exit code, a timeout) raises EnvironmentFailure and is never a reward.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from queue import Empty
from typing import Any

import msgspec

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.logging import get_logger
from agentrl.envs.contract import (
    Message,
    Observation,
    Outcome,
    TokenLogprob,
    Tool,
    ToolCall,
    TurnTerms,
)
from agentrl.envs.gateway.chat import plain_message
from agentrl.envs.gateway.chat_server import (
    EpisodeLine,
    PendingRequest,
    chat_server,
    reply_response,
)
from agentrl.envs.gateway.messages import (
    DialogueReply,
    DialogueTurn,
    TokenCounts,
    cut_at_stop,
    policy_turn,
)
from agentrl.envs.gateway.process import Program, ProgramEnd
from agentrl.envs.gateway.request_fields import is_json_object
from agentrl.envs.gateway.reward import Result, Reward, call_reward

NOT_RUN = "not run: another call of this turn was ill-formed"
NO_CALL = "call a tool: a turn without a call is not accepted here"
NO_JSON = "answer with one JSON object and nothing else"
ONE_CALL = "one call a turn: none was run"
DENIED = "Permission denied"
SHOWN = 300  # characters of a program's last words

log = get_logger()


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of episodes. `timeout_s`: of one turn of the program, and of the reward.

    `own_user`: if AgentRL runs as root, each program runs as its own user. `untrained`: patterns;
    a request is left out of the loss if one is found in its system or first user message.
    """

    program: tuple[str, ...]
    env: Mapping[str, str]
    timeout_s: float
    reward: Reward
    own_user: bool = True
    untrained: tuple[re.Pattern[str], ...] = ()


class Gateway:
    """One episode, used once."""

    def __init__(self, item: Mapping[str, Any], plan: Plan) -> None:
        self._item = item
        self._plan = plan
        self._line = EpisodeLine()
        self._program: Program | None = None
        self._pending: PendingRequest | None = None
        self._turns = 0  # of the policy
        self._sampled = 0  # turns that went into a reply
        self._length = TokenCounts()
        self._tokens: tuple[TokenLogprob, ...] | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Return the tools of the program's first request; none before `start`."""
        return self._pending.request.tools if self._pending else ()

    def start(self) -> Observation:
        """Start the program. Raises EnvironmentFailure, ConfigError."""
        gate = chat_server()
        gate.open(self._line)
        item = msgspec.json.encode(self._item)
        variables = {
            "AGENTRL_ITEM": item.decode(),
            "OPENAI_BASE_URL": f"{gate.url}/v1",
            "OPENAI_API_KEY": self._line.token,
            "ANTHROPIC_BASE_URL": gate.url,
            "ANTHROPIC_API_KEY": self._line.token,
        }
        environment = dict(self._plan.env) | variables
        plan, report_end = self._plan, self._line.end
        self._program = Program(plan.program, item, environment, report_end, own_user=plan.own_user)
        event = self._event()
        if isinstance(event, ProgramEnd):
            raise EnvironmentFailure(f"the program exited without a request{self._refused()}")
        return Observation(event.placement.messages, self._terms(event))

    def sampled(
        self,
        prompt: int,
        completion: int,
        finish_reason: str,
        tokens: Sequence[TokenLogprob] | None,
    ) -> None:
        """Set the usage and the tokens for the next answer; zeros and none if not called."""
        self._length = TokenCounts(prompt, completion, finish_reason == "length")
        self._tokens = None if tokens is None else tuple(tokens)

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        """Apply a turn. Raises EnvironmentFailure."""
        pending = self._pending
        if pending is None:
            raise EnvironmentFailure("the episode has not started")
        self._turns += 1
        if faults := _faults(calls, pending, cut=self._length.cut):
            return Outcome(faults, terms=self._terms(pending))
        self._answer(pending, calls)
        if len(pending.turns) < pending.request.count:
            return self._next(pending)
        event = self._event()
        if isinstance(event, PendingRequest):
            return self._next(event)
        last = self._line.last_replies()
        conversations = [[plain_message(each) for each in reply.whole] for reply in last]
        result = Result(
            stdout=event.out,
            stderr=event.err,
            messages=conversations[-1],
            conversations=conversations,
            turns=self._sampled,
        )
        plan, count = self._plan, len(conversations)
        scored = call_reward(plan.reward, self._item, result, plan.timeout_s, conversations=count)
        rewards = zip(last, scored.branches, strict=False)  # or none at all
        return Outcome(
            (),
            done=True,
            reward=scored.reward,
            score=scored.score,
            branch_rewards={reply.turn: each for reply, each in rewards if each is not None},
        )

    def close(self) -> None:
        """End the program; waiting requests get an answer that the episode is over."""
        if self._program is not None:
            chat_server().close(self._line)
            self._program.close()
            self._program = None

    def _answer(self, pending: PendingRequest, calls: Sequence[ToolCall] | str) -> None:
        """Add a turn to the answer of a request, and send it if it is the last one."""
        stopped_at = ""
        if isinstance(calls, str):
            calls, stopped_at = cut_at_stop(calls, pending.request.terms.stop)
        self._sampled += 1
        message = policy_turn(self._sampled, calls)
        turn = DialogueTurn(message, self._length, stopped_at, self._tokens)
        self._length, self._tokens = TokenCounts(), None
        pending.turns = (*pending.turns, turn)
        number = self._sampled - len(pending.turns) + 1
        self._line.add_reply(number, self._turns, pending)
        if len(pending.turns) == pending.request.count:
            reply = DialogueReply(number, pending.turns, pending.request)
            pending.reply.set_result(reply_response(pending.api, reply))

    def _next(self, pending: PendingRequest) -> Outcome:
        """Return what the policy answers next."""
        placement = pending.placement
        latest = placement.follows == self._turns
        return Outcome(
            placement.messages,
            terms=self._terms(pending),
            follows=None if latest else placement.follows,
        )

    def _terms(self, pending: PendingRequest) -> TurnTerms:
        first = {each.role: each.content for each in reversed(pending.placement.whole)}
        opening = (first.get("system", ""), first.get("user", ""))
        left_out = any(each.search(text) for each in self._plan.untrained for text in opening)
        return replace(pending.request.terms, trained=not left_out)

    def _refused(self) -> str:
        return f"; its last refused request: {self._line.refused}" if self._line.refused else ""

    def _event(self) -> PendingRequest | ProgramEnd:
        """Wait for the next request, or the program's successful end. Raises EnvironmentFailure."""
        try:
            event = self._line.next_event(self._plan.timeout_s)
        except Empty:
            raise EnvironmentFailure(
                f"the program sent no request and did not exit for {self._plan.timeout_s:g} s"
                f"{self._refused()}",
                hint="raise the option timeout_s of the task",
            ) from None
        if isinstance(event, ProgramEnd):
            if event.code:
                last = event.err.strip().rpartition("\n")[2][:SHOWN]
                denied = self._plan.own_user and DENIED in event.err and os.getuid() == 0
                raise EnvironmentFailure(
                    f"the program exited with code {event.code}: {last}{self._refused()}",
                    hint="make its files readable for all users, or set the option own_user = false"
                    if denied
                    else "",
                )
            return event
        self._pending = event
        for name in event.request.ignored:
            _tell_once(name)
        return event


def _faults(
    calls: Sequence[ToolCall] | str, asked: PendingRequest, *, cut: bool
) -> tuple[Message, ...]:
    """Return error messages for an invalid turn, which replace the program's answer.

    `cut`: it was ended by a limit; the program learns so by the finish reason.
    """
    request = asked.request
    if isinstance(calls, str):
        if request.must_call:
            return (Message("user", NO_CALL),)
        text, _ = cut_at_stop(calls, request.terms.stop)
        wrong = request.must_json and not cut and not is_json_object(text)
        return (Message("user", NO_JSON),) if wrong else ()
    if any(call.error for call in calls):
        return tuple(Message("tool", call.error or NOT_RUN, call.name) for call in calls)
    if request.single and len(calls) > 1:
        return tuple(Message("tool", ONE_CALL, call.name) for call in calls)
    return ()


@cache
def _tell_once(name: str) -> None:
    log.warning("Part of a program's request ignored", field=name)
