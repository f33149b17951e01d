"""Plays recorded episodes again: sampling and training sleep, everything else is real.

    trace.json ─▶ lines: tokens sampled and observed, turn by turn
    session of a request ─▶ its line ─▶ `Engine`: so many tokens, in the seconds they take
         └─ first turn says the line's number ─▶ `Play`: as many turns, as long answers
    tokens of a batch ─▶ `Learner`: the seconds they take; weights, probes and snapshots are real

Run by itself it makes the trace from the store of a run:

    python benchmarks/helpers/trace_playback.py sqlite:////…/runs/quickstart/store.db \
        > benchmarks/helpers/trace.json
"""

import json
import random
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from agentrl.core.types import Status
from agentrl.envs.contract import Item, Message, Observation, Outcome
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.scripted import ScriptedEngine, limits_of
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import OPEN, Gates, Metrics
from agentrl.trainer.engines.torch_learner import TorchLearner

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "models" / "tiny"
LINES, PROMPT = 384, 22  # episodes of the trace; tokens of a first prompt, the same in all
NAMED = 4  # tokens of a first turn at least: three digits of its line and an end
ZERO, FILLER = 21, 19  # tokens of models/tiny: the digit 0, a full stop
AROUND = 2  # tokens that its template puts around an answer
EPISODE = re.compile(r"-(\d+)-(\d+)/\d+$")  # position and member of a session


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One recorded episode: tokens sampled at each turn, and tokens of the answer to it."""

    sampled: list[int]
    observed: list[int]

    @property
    def tokens(self) -> int:
        return PROMPT + sum(self.sampled) + sum(self.observed)


def trace() -> list[Line]:
    return msgspec.json.decode((HERE / "trace.json").read_bytes(), type=list[Line])


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. `sampled`: of a sampled token; `row_free`: of a pass, however few rows it has;
    `trained`: of a token of an update; `load`: of a checkpoint.
    """

    sampled: float
    row_free: float
    trained: float
    load: float

    def generation(self, lines: Sequence[Line]) -> float:
        """Of an engine that never waits and whose passes cost nothing beside their rows."""
        return self.sampled * sum(sum(line.sampled) for line in lines)

    def training(self, lines: Sequence[Line]) -> float:
        return self.trained * sum(line.tokens for line in lines)


@dataclass(slots=True)
class Row:
    """A request under way: tokens still to come, its answer, who waits for it."""

    left: int
    answer: Completion
    future: Future[Completion]


class Engine(ScriptedEngine):
    """Continuous batching on a clock: a pass gives every row a token and takes its time."""

    def __init__(self, pace: Pace, group_size: int) -> None:
        super().__init__(self._of_line, limits=limits_of(MODEL))
        self._pace = pace
        self._group_size = group_size
        self._lines = trace()
        self._turns: dict[str, int] = {}
        self._rows: list[Row] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._compute, name="engine", daemon=True).start()

    def load(self, name: str, path: Path) -> None:
        time.sleep(self._pace.load)
        super().load(name, path)

    def submit(self, request: Request) -> Future[Completion]:
        answer = super().submit(request).result()
        row = Row(len(answer.token_ids), answer, Future())
        with self._changed:
            self._rows.append(row)
            self._changed.notify()
        return row.future

    def _of_line(self, request: Request) -> Sequence[int]:
        """The line's number in the first turn, then nothing but full stops."""
        found = EPISODE.search(request.session)
        if found is None:
            raise ValueError(f"no episode: {request.session}")
        place = int(found[1]) * self._group_size + int(found[2])
        number = place % len(self._lines)
        turn = self._turns.get(request.session, 0)
        self._turns[request.session] = turn + 1
        said = [ZERO + int(digit) for digit in f"{number:03}"] if turn == 0 else []
        (end,) = request.stop_ids
        return [*said, *[FILLER] * (self._lines[number].sampled[turn] - len(said) - 1), end]

    def _compute(self) -> None:
        """A late wake-up is no time lost: a pass ends when it should, while there is work."""
        due = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._rows)
                rows = list(self._rows)
            due = max(due, time.monotonic() - 0.05)
            due += self._pace.row_free + self._pace.sampled * len(rows)
            time.sleep(max(0.0, due - time.monotonic()))
            for row in rows:
                row.left -= 1
            with self._changed:
                self._rows = [row for row in self._rows if row.left > 0]
            for row in rows:
                if row.left == 0:
                    row.future.set_result(row.answer)


class Learner(TorchLearner):
    """Updates take their time and change nothing; what is saved is what would be."""

    pace: Pace

    def update(self, batch: Batch, gates: Gates = OPEN) -> Metrics:
        seconds = self.pace.trained * batch.tokens.size
        time.sleep(seconds)
        gates.before_step()
        return Metrics({"tokens": float(batch.tokens.size), "seconds": seconds})


class Play:
    """An environment that answers as the recorded one did, as long and as often."""

    tools = ()

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._line: Line | None = None
        self._won = 0.0
        self._turn = 0

    def start(self) -> Observation:
        return Observation((Message("user", "0" * (PROMPT - AROUND)),))

    def call(self, calls: Any) -> Outcome:
        if self._line is None:
            number = int(str(calls)[:3])
            self._line, self._won = self._lines[number], float(number % 2)
        self._turn += 1
        if self._turn < len(self._line.sampled):
            answer = "0" * (self._line.observed[self._turn - 1] - AROUND)
            return Outcome((Message("tool", answer, "look"),))
        return Outcome((), True, Status.COMPLETED, self._won, self._won)

    def close(self) -> None:
        """Nothing is held."""


class Source:
    """A thousand items, all alike: what is played depends on the place in the stream."""

    name = "played"
    max_turns = 64
    splits = ("train", "test")

    def __init__(self, _options: Mapping[str, Any]) -> None:
        self._lines = trace()

    def items(self, split: str) -> list[Item]:  # noqa: ARG002 - the contract's
        return [Item(self.name, f"item-{n}", {}) for n in range(1_000)]

    def make(self, item: Item) -> Play:  # noqa: ARG002 - the contract's
        return Play(self._lines)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Any:
        raise NotImplementedError("nobody plays better")


def main(url: str) -> None:
    """Lines of the episodes of a store, drawn at random, none of them left out for its length."""
    from sqlalchemy import select

    from agentrl.db.models.episodes import Episode, Step
    from agentrl.db.query_parts import same_attempt
    from agentrl.db.store import open_store

    steps: dict[str, list[tuple[int, int]]] = {}
    ends: dict[str, int] = {}
    store = open_store(url)
    with store.read() as session:
        chosen = select(Episode.episode_id, Episode.tokens, Step.token_start, Step.token_end).join(
            Step, same_attempt(Step, Episode)
        )
        for name, tokens, start, end in session.execute(chosen.order_by(Step.number)):
            steps.setdefault(name, []).append((start, end))
            ends[name] = tokens or 0
    store.close()
    random.seed(0)
    lines = [_line(steps[name]) for name in random.sample(sorted(steps), LINES)]
    rows = ",\n".join(json.dumps(msgspec.to_builtins(line)) for line in lines)
    print(f"[\n{rows}\n]")


def _line(spans: Sequence[tuple[int, int]]) -> Line:
    """What one turn leaves unsaid (a line has room for its number), the trace says."""
    sampled = [end - start for start, end in spans]
    observed = [after[0] - before[1] for before, after in pairwise(spans)]
    first, rest = sampled[0], [max(1, each) for each in sampled[1:]]
    return Line([max(NAMED, first), *rest], [max(AROUND + 1, each) for each in observed])


if __name__ == "__main__":
    main(sys.argv[1])
