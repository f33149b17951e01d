"""The branches of an episode: each is a conversation, all share the policy's turns.

    turn 1 ── turn 2 ── turn 4          a branch goes on after its own last turn,
         └─── turn 3                    forks from an earlier turn (its tokens become context),
    turn 5                              or begins a conversation

At the end the branches lie one after the other in the trajectory. A turn that a new branch
repeats keeps the tokens that were sampled; only the first time are they in the loss.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from agentrl.core.errors import ConfigError, EnvironmentFailure
from agentrl.core.trajectory import BranchPoint, StepRecord
from agentrl.envs.contract import Message, Outcome, Tool
from agentrl.workers.conversation.conversation import Arrays, Conversation, Converse
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style, join_calls, render


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of the policy: its branch, and its span there."""

    branch: int
    span: slice


class Branches:
    """The conversations of one episode. `current`: the one that the next turn belongs to."""

    def __init__(
        self,
        converse: Converse,
        template: ChatTemplate,
        style: Style,
        tools: Sequence[Tool],
        first: Sequence[Message],
    ) -> None:
        """`first`: the first messages of the environment."""
        self._converse = converse
        self._template = template
        self._style = style
        self._turns: list[_Turn] = []
        self._number = 0
        self._forked_from = [0]  # of each branch: a turn from 1; 0: none
        self._conversations = [self._begin(first, tools)]

    @property
    def current(self) -> Conversation:
        return self._conversations[self._number]

    @property
    def conversations(self) -> Sequence[Conversation]:
        """Return all branches. A turn that several of them contain is in the loss of one."""
        return self._conversations

    @property
    def number(self) -> int:
        """Return the number of the current branch, from 0."""
        return self._number

    def end_turn(self) -> None:
        """Number the turn that was just sampled."""
        self._turns.append(_Turn(self._number, self.current.turn))

    def require_turns(self, numbers: Iterable[int]) -> None:
        """Raise EnvironmentFailure unless there is a turn of each number, from 1."""
        unknown = [number for number in numbers if not 0 < number <= len(self._turns)]
        if unknown:
            raise EnvironmentFailure(f"a branch with a reward ends with turn {unknown[0]}, unknown")

    def observe(self, outcome: Outcome, tools: Sequence[Tool]) -> None:
        """Append an answer where it belongs. `tools`: of a conversation that begins.

        Raises EnvironmentFailure if it follows no turn, or does not fit the chat template.
        """
        if outcome.follows is None:
            self.current.observe(outcome.messages)
            return
        if not 0 <= outcome.follows <= len(self._turns):
            raise EnvironmentFailure(f"an answer follows turn {outcome.follows}, which is unknown")
        try:
            if outcome.follows:
                self._follow(outcome.follows, outcome.messages)
            else:
                self._open(self._begin(outcome.messages, tools), 0)
        except ConfigError as error:
            raise EnvironmentFailure(f"a branch of the conversation: {error}") from error

    def flatten(
        self, steps: Sequence[tuple[int, StepRecord]], max_tokens: int
    ) -> tuple[Arrays, list[StepRecord], list[int]]:
        """Return the arrays of all branches, and the steps in the order of their tokens.

        A branch of more than `max_tokens` ends with its last step: no policy read the answer to
        that step. `steps`: each with its branch, whose tokens its span refers to. The third list:
        of each turn, the number of its last step.
        """
        lengths = [0] * (max((branch for branch, _ in steps), default=0) + 1)
        for branch, step in steps:
            whole = len(self._conversations[branch])
            lengths[branch] = whole if whole <= max_tokens else max(lengths[branch], step.end)
        begins = [0, *accumulate(lengths)]
        ordered = sorted(steps, key=lambda each: (each[0], each[1].start))
        ends = {(branch, step.end): number for number, (branch, step) in enumerate(ordered)}
        last_steps = [ends[turn.branch, turn.span.stop] for turn in self._turns]
        records, seen = [], set()
        for branch, step in ordered:
            begin, parent = begins[branch], None
            if branch not in seen and (turn := self._forked_from[branch]):
                parent = last_steps[turn - 1]
            seen.add(branch)
            point = BranchPoint(begin=begin, forked_from=parent) if branch else None
            span = {"start": begin + step.start, "end": begin + step.end}
            records.append(msgspec.structs.replace(step, **span, branch=point))
        kept = zip(self._conversations, lengths, strict=False)
        arrays = [conversation.arrays(length) for conversation, length in kept]
        return (
            Arrays(
                b"".join(each.token_ids for each in arrays),
                b"".join(each.loss_mask for each in arrays),
                b"".join(each.logprobs for each in arrays),
                b"".join(each.policy_index for each in arrays),
            ),
            records,
            last_steps,
        )

    def _follow(self, turn: int, messages: Sequence[Message]) -> None:
        """Go on after a turn: in its branch if nothing follows it there, else in a new one."""
        after = self._turns[turn - 1]
        conversation = self._conversations[after.branch]
        if len(conversation) == after.span.stop:
            self._number = after.branch
        else:
            conversation = copy.copy(conversation)
            conversation.go_back(after.span)
            self._open(conversation, turn)
        self._append(self.current, messages)

    def _open(self, conversation: Conversation, forked_from: int) -> None:
        self._conversations.append(conversation)
        self._forked_from.append(forked_from)
        self._number = len(self._conversations) - 1

    def _begin(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Conversation:
        """Return a conversation with these messages."""
        roles = [each.role for each in messages]
        count = roles.index("assistant") if "assistant" in roles else len(messages)
        conversation = self._converse(self._template, tools, messages[:count])
        self._append(conversation, messages[count:])
        return conversation

    def _append(self, conversation: Conversation, messages: Sequence[Message]) -> None:
        """Append messages, between which an assistant's are turns of the past."""
        for message, answer in _exchanges(messages):
            if message is not None:
                conversation.append_sampled(self._past_turn(message), [], 0, masked=True)
            conversation.observe(answer)

    def _past_turn(self, message: Message) -> list[int]:
        """Return the tokens that were sampled, or those of a text that no policy of ours wrote."""
        if message.turn:
            turn = self._turns[message.turn - 1]
            return self._conversations[turn.branch].prompt()[turn.span]
        calls = (render(each, self._style) for each in message.calls)
        text = self._template.defuse(join_calls(message.content, calls))
        return [*self._template.encode(text), self._template.end_id]


def _exchanges(messages: Sequence[Message]) -> Iterator[tuple[Message | None, list[Message]]]:
    """Yield each assistant's message and the messages that follow it; first those before any."""
    message: Message | None = None
    answer: list[Message] = []
    for each in messages:
        if each.role == "assistant":
            if answer or message is not None:
                yield message, answer
            message, answer = each, []
        else:
            answer.append(each)
    yield message, answer
