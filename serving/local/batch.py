"""The running batch of one policy (continuous batching): requests join and leave at every token.

    waiting ─▶ join: a row each, known prefix copied in, new tokens fed in ragged groups ─┐
        ┌─────────────────────────────────────────────────────────────────────────────────┘
        ▼
    rows 0…n-1 ─▶ one forward pass, one token each ─▶ finished rows leave, the last fills the gap

A known prefix is that of the row's own session, or of another row or session of the policy which
begins alike: the episodes of a group have the same first prompt, those of a task the same tools.

Rows of a group differ in length. Padding is put in front, so that the last column of every row is
its last token, and all at the position behind the row's end, where it is masked and later
overwritten.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from agentrl.core.errors import PolicyError
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.local.kv_cache import Prefix, Prefixes
from agentrl.serving.local.pass_sizes import PIECE, PassSizes
from agentrl.serving.local.sampling import draw_tokens
from agentrl.serving.local.served_model import ServedModel

SHARE = 32  # a prefix of another session is compared and copied in steps of this many tokens


@dataclass(slots=True, eq=False)
class Row:
    """A running request. `tokens`: prompt and sampled tokens; the first `fed` are in the cache."""

    request: Request
    future: Future[Completion]
    draws: random.Random
    tokens: list[int]
    logprobs: list[float] = field(default_factory=list)
    fed: int = 0
    cached: int = 0

    @property
    def left(self) -> int:
        """Return the tokens that are not in the cache yet."""
        return len(self.tokens) - self.fed

    def finish_reason(self) -> str:
        """Return stop or length; empty: not finished."""
        if self.logprobs and self.tokens[-1] in self.request.stop_ids:
            return "stop"
        return "length" if len(self.logprobs) >= self.request.max_tokens else ""


class Batch:
    """The running batch. For the compute thread; any thread may append to `waiting`."""

    def __init__(self, policy: str, model: ServedModel, prefixes: Prefixes, max_rows: int) -> None:
        self.waiting: deque[Row] = deque()
        self.model = model
        self._policy = policy
        self._prefixes = prefixes
        self._max_rows = max_rows
        self._sizes = PassSizes.on(model.cache.keys.device.type)
        self._rows: list[Row] = []
        self._since_join = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self._rows)

    def step(self) -> None:
        """Let due requests join, then sample the next token of every row.

        A pass is expensive whatever its size, so requests join together: at once if half as many
        wait as run, else after some tokens.
        """
        self._since_join += 1
        if 2 * len(self.waiting) >= len(self._rows) or self._since_join >= self._sizes.patience:
            self._join()
            self._since_join = 0
        self._advance(0, len(self._rows))

    def abort(self, reason: str) -> None:
        rows, self._rows = self._rows, []
        with suppress(IndexError):
            while True:
                rows.append(self.waiting.popleft())
        for row in rows:
            if row.future.set_running_or_notify_cancel():
                row.future.set_exception(PolicyError(reason))

    def release(self) -> None:
        """Leave the cache to the next policy of this shape; after `abort`, of a policy unloaded."""
        if self.model.recorder is not None:
            self.model.recorder.give_cache(self.model.cache)

    def _join(self) -> None:
        """Admit waiting requests; of equal prompts the first goes ahead, and the others copy it."""
        ahead: dict[tuple[int, ...], Row] = {}
        followers: list[Row] = []
        while self.waiting and len(self._rows) + len(ahead) + len(followers) < self._max_rows:
            row = self.waiting.popleft()
            if not row.future.cancelled() and ahead.setdefault(tuple(row.tokens), row) is not row:
                followers.append(row)
        self.waiting.extendleft(reversed(followers))  # where `abort` finds them, if a pass fails
        self._admit(list(ahead.values()))
        self._admit([self.waiting.popleft() for _ in followers])

    def _admit(self, joining: Sequence[Row]) -> None:
        first = len(self._rows)
        prefixes = [self._prefix(row) for row in joining]
        order = sorted(zip(joining, prefixes, strict=True), key=lambda pair: -pair[0].left)
        self._rows.extend(row for row, _ in order)
        for index, (row, prefix) in enumerate(order, first):
            self._start(index, row, prefix)
        left = [row.left for row in self._rows[first:]]
        for start, end in reversed(group_lengths(left, self._sizes)):
            self._advance(first + start, first + end)

    def _prefix(self, row: Row) -> Prefix | int | None:
        """Return what the row starts with, a prefix or a running row's index; set `fed`.

        At least one token is left to be fed.
        """
        prefix = self._prefixes.take(self._policy, row.request.session)
        if prefix is not None:
            row.fed = row.cached = min(prefix.common(row.tokens), len(row.tokens) - 1)
            return prefix
        known: list[tuple[Prefix | int, Sequence[int]]] = [
            *((index, other.tokens) for index, other in enumerate(self._rows)),
            *((stored, stored.tokens) for stored in self._prefixes.of(self._policy)),
        ]
        start, row.fed = longest_start(row.tokens, known)
        row.cached = row.fed
        return start

    def _start(self, index: int, row: Row, prefix: Prefix | int | None) -> None:
        """Copy the prefix, and feed a prompt except its last piece."""
        self.model.cache.reserve(index + 1, len(row.tokens))
        if isinstance(prefix, int):
            self.model.cache.move(prefix, index, row.fed)
        elif prefix is not None:
            self.model.cache.put(index, prefix.keys, prefix.values, row.fed)
        while row.left > PIECE:
            self._feed(index, [row], PIECE)

    def _advance(self, first: int, end: int) -> None:
        """Feed the rest of rows first…end-1, sample a token each, and remove finished rows."""
        rows = self._rows[first:end]
        if not rows:
            return
        logits = self._feed(first, rows, max(row.left for row in rows))
        temperatures = torch.tensor([row.request.temperature for row in rows])
        uniforms = torch.tensor([row.draws.random() for row in rows], dtype=torch.float64)
        tokens, logprobs = draw_tokens(logits, temperatures.to(logits), uniforms.to(logits.device))
        if not torch.isfinite(logprobs).all():
            raise PolicyError("a log-probability is not finite")
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
        for index in range(end - 1, first - 1, -1):
            row = self._rows[index]
            if row.finish_reason() or row.future.cancelled():
                self._leave(index, row)

    def _feed(self, first: int, rows: Sequence[Row], columns: int) -> torch.Tensor:
        """Run one pass over at most `columns` tokens per row; return the last logits [n, V]."""
        ids, positions, width = [], [], 0
        most = columns
        if self.model.recorder is not None:
            columns = self.model.recorder.round_columns(columns)
        for row in rows:
            end = row.fed + min(row.left, most)
            padding = columns - (end - row.fed)
            ids.append([0] * padding + row.tokens[row.fed : end])
            positions.append([end] * padding + [*range(row.fed, end)])
            width = max(width, end + (padding > 0))
            row.fed = end
        self.model.cache.reserve(first + len(rows), width)
        if columns == 1:
            width = self.model.cache.decoding_width(len(rows), width)
        return self.model.forward(first, torch.tensor(ids), torch.tensor(positions), width)

    def _leave(self, index: int, row: Row) -> None:
        """Finish a row: answer, keep its prefix for the session, and close the gap."""
        if row.request.session and not row.future.cancelled():
            prefix = Prefix(row.tokens[: row.fed], *self.model.cache.copy(index, row.fed))
            self._prefixes.keep(self._policy, row.request.session, prefix)
        last = self._rows.pop()
        if last is not row:
            self.model.cache.move(len(self._rows), index, last.fed)
            self._rows[index] = last
        if row.future.set_running_or_notify_cancel():
            sampled = row.tokens[len(row.request.prompt) :]
            row.future.set_result(
                Completion(sampled, row.logprobs, row.finish_reason(), row.cached)
            )


def group_lengths(lengths: Sequence[int], sizes: PassSizes) -> list[tuple[int, int]]:
    """Group rows of descending lengths into passes [start, end) with little padding."""
    spans, start, waste = [], 0, 0
    for index, length in enumerate(lengths):
        waste += lengths[start] - length
        padded = (index - start + 1) * lengths[start]
        if waste > sizes.waste or padded > max(sizes.group, lengths[start]):
            spans.append((start, index))
            start, waste = index, 0
    return [*spans, (start, len(lengths))] if lengths else []


def longest_start(
    tokens: Sequence[int], known: Iterable[tuple[Prefix | int, Sequence[int]]]
) -> tuple[Prefix | int | None, int]:
    """Return what begins most like `tokens`, and for how many of them: a multiple of `SHARE`.

    It is less than either has: a row's last token is not in the cache, and one is to be fed.
    """
    best, length = None, 0
    for source, other in known:
        bound, alike = min(len(tokens), len(other)), 0
        while (end := length + SHARE) < bound and other[alike:end] == tokens[alike:end]:
            best, length, alike = source, end, end
    return best, length
