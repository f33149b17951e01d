"""The tokens of a conversation, exactly as sent and sampled: one branch of an episode.

They come from two sources only: tokens that a policy sampled (mask 1, or 0 if their
log-probabilities are unusable) and tokens that the chat template adds (mask 0). Nothing is
re-tokenised: a trajectory is the concatenation of both.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.envs.contract import Message, Tool
from agentrl.workers.conversation.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays of a Trajectory (`core/trajectory.py`): little-endian int32, uint8, float32, uint8."""

    token_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    policy_index: bytes


class Conversation:
    """The tokens of one branch.

    Call `prompt`, `append_sampled` and `observe` in turn until the episode is done. If a policy
    aborts a turn, call `prompt` and `append_sampled` again before `observe`.
    """

    def __init__(
        self, template: ChatTemplate, tools: Sequence[Tool], first: Sequence[Message]
    ) -> None:
        """`first`: the first messages of the environment."""
        self._template = template
        self._tools = tuple(tools)
        self._ids = array("i")
        self._mask = bytearray()
        self._logprobs = array("f")
        self._policies = bytearray()
        self._exchanges: list[tuple[slice, Sequence[Message]]] = []  # a turn's span, the answer
        self._first = tuple(first)
        self._turn: slice | None = None  # the span of the turn that no answer has closed
        self._append(template.encode(template.render(first, tools, generate=True)))

    def __len__(self) -> int:
        """Return the number of tokens so far."""
        return len(self._ids)

    def prompt(self) -> list[int]:
        """Return all tokens so far. They end in the generation prompt when a policy must act."""
        return self._ids.tolist()

    def history(self, *, to_the_end: bool = False) -> list[Message]:
        """Return the conversation as messages, for a policy that does not read our tokens.

        An assistant's turn is the text of its tokens, with calls in the model's format. An
        unanswered turn is left out, unless `to_the_end`.
        """
        messages = list(self._first)
        exchanges: list[tuple[slice, Sequence[Message]]] = list(self._exchanges)
        if to_the_end and self._turn is not None:
            exchanges.append((self._turn, ()))
        for turn, answer in exchanges:
            tokens = self._ids[turn].tolist()
            ended = tokens[-1:] and tokens[-1] in self._template.stop_ids
            text = self._template.decode(tokens[:-1] if ended else tokens)
            messages += [Message("assistant", text), *answer]
        return messages

    def append_sampled(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        policy_index: int,
        *,
        masked: bool = False,
    ) -> tuple[int, int]:
        """Append a sampled completion and return its span (start, end).

        `logprobs`: natural logs, one per token; ignored if `masked`, because masked tokens are not
        in the loss. `policy_index`: 0–255. Raises ValueError if the lengths differ.
        """
        if not masked and len(token_ids) != len(logprobs):
            raise ValueError(f"{len(token_ids)} tokens with {len(logprobs)} log-probabilities")
        start = len(self)
        self._ids.extend(token_ids)
        self._mask.extend(bytes([not masked]) * len(token_ids))
        self._logprobs.extend([0.0] * len(token_ids) if masked else logprobs)
        self._policies.extend(bytes([policy_index]) * len(token_ids))
        self._turn = slice(self._turn.start if self._turn else start, len(self))
        return start, len(self)

    @property
    def turn(self) -> slice:
        """Return the span of the turn that no answer has closed."""
        return self._turn or slice(len(self), len(self))

    def go_back(self, turn: slice) -> None:
        """Go on after a turn, as a copy does that forks there: what was sampled is context."""
        self._ids = self._ids[: turn.stop]
        self._mask = bytearray(turn.stop)
        self._logprobs = array("f", bytes(4 * turn.stop))
        self._policies = bytearray(turn.stop)
        self._exchanges = [each for each in self._exchanges if each[0].stop <= turn.start]
        self._turn = turn

    def observe(self, messages: Sequence[Message]) -> None:
        """Append the answer to the completion just sampled, up to the next generation prompt.

        The token that closes the assistant's turn is the policy's if it sampled it, else it comes
        from the template with mask 0. The last answer of an episode has no message and adds
        nothing.
        """
        if not messages:
            return
        tail = self._template.encode(self._template.tail(messages, self._tools))
        turn = self.turn
        closed = turn.stop > turn.start and tail[:1] == [self._ids[-1]]
        self._exchanges.append((turn, messages))
        self._turn = None
        self._append(tail[closed:])

    def tokens(self, start: int, end: int) -> bytes:
        """Return the tokens of a span as little-endian int32."""
        return np.asarray(self._ids[start:end], "<i4").tobytes()

    def logprobs(self, start: int, end: int) -> bytes:
        """Return the log-probabilities of a span as little-endian float32."""
        return np.asarray(self._logprobs[start:end], "<f4").tobytes()

    def turn_logprobs(self) -> list[float] | None:
        """Return the log-probabilities of the turn; None if one of its tokens is masked."""
        span = self.turn
        return self._logprobs[span].tolist() if all(self._mask[span]) else None

    def arrays(self, length: int | None = None) -> Arrays:
        """Return the arrays of the first `length` tokens; None: of all."""
        return Arrays(
            np.asarray(self._ids[:length], "<i4").tobytes(),
            bytes(self._mask[:length]),
            np.asarray(self._logprobs[:length], "<f4").tobytes(),
            bytes(self._policies[:length]),
        )

    def _append(self, token_ids: Sequence[int]) -> None:
        zeros = bytes(len(token_ids))
        self._ids.extend(token_ids)
        self._mask.extend(zeros)
        self._logprobs.extend([0.0] * len(token_ids))
        self._policies.extend(zeros)


Converse = Callable[[ChatTemplate, Sequence[Tool], Sequence[Message]], Conversation]
