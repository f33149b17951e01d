"""Invariants that hold after every step of the protocol, checked in plain SQL."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from paused_run import BOUND, PLAN, PausedRun
from protocol_stores import Beside

from agentrl.core.journal import decode_record
from agentrl.db.transitions.trajectories.journal import FormerStep, chain

LATE = {"overdue", "episode_without_body"}  # kinds that time alone brings and mends
CLOSED = "('trained', 'filtered', 'stale', 'failed', 'cancelled', 'rolled_back')"
CONTINUABLE = (None, "lost", "body_lost")  # what an attempt ends by without a fault of its own
ENDED = ("finished", "failed", "cancelled")


class Witness:
    """Remembers what it saw: what was closed stays as it was, fences and attempts only grow."""

    def __init__(self, beside: Beside, runs: Sequence[PausedRun]) -> None:
        self._ask = beside.ask
        self._runs = runs
        self._closed: dict[str, Any] = {}
        self._fences: dict[str, int] = {}
        self._learned: dict[str, list[Any]] = {}

    def look(self) -> None:
        """Raises AssertionError."""
        kinds = self._ask("SELECT DISTINCT kind FROM accounting")
        assert {kind for (kind,) in kinds} <= LATE, kinds
        self._episodes()
        self._groups()
        for run in self._runs:
            self._positions(run)
            self._lineage(run)
            self._journal(run)
            assert run.broker.refused == []

    def is_quiet(self) -> None:
        """All is over: one end each, and what is missing is what the broker lost."""
        open_rows = self._ask("SELECT * FROM episodes WHERE state IN ('queued', 'running')")
        assert open_rows == []
        assert self._ask("SELECT * FROM groups WHERE state IN ('open', 'ready')") == []
        assert self._ask("SELECT * FROM journal") == []
        missing = self._ask("SELECT kind, episode_id, fence FROM accounting")
        lost = set().union(*(run.broker.lost for run in self._runs))
        assert {kind for kind, *_ in missing} <= {"episode_without_body"}, missing
        assert {(episode, fence) for _, episode, fence in missing} <= lost, (missing, lost)

    def version(self, run: PausedRun) -> int:
        ((version,),) = self._ask("SELECT version FROM runs WHERE run_id = :run", run=run.run_id)
        return int(version)

    def told(self, run: PausedRun) -> dict[str, Any]:
        """How a run stands, for a message."""
        counts = "SELECT state, COUNT(*) FROM {} WHERE run_id = :run GROUP BY state"
        return {
            name: self._ask(counts.format(name), run=run.run_id)
            for name in ("groups", "episodes", "updates")
        } | {"run": self._ask("SELECT * FROM runs WHERE run_id = :run", run=run.run_id)}

    def _episodes(self) -> None:
        columns = "e.episode_id, e.run_id, e.fence, e.attempts, e.state, e.body_sha256, g.run_id"
        rows = self._ask(
            f"SELECT {columns}, g.state IN {CLOSED} FROM episodes e JOIN groups g USING (group_id)"  # noqa: S608
        )
        published = {run.run_id: run.broker.published for run in self._runs}
        for episode, run_id, fence, attempts, state, sha256, of_run, closed in rows:
            assert state != "finished" or (episode, fence) in published[run_id], (episode, fence)
            assert episode.startswith(f"{run_id}-"), (episode, run_id)
            assert of_run == run_id, (episode, of_run)
            assert 0 <= attempts <= PLAN.max_attempts, (episode, attempts)
            assert fence >= self._fences.get(episode, 1), (episode, fence)
            self._fences[episode] = fence
            if closed:
                assert state in ENDED, (episode, state)
                self._stays(episode, (fence, state, sha256))
        foreign = "SELECT episode_id FROM trajectories WHERE episode_id NOT LIKE run_id || '-%'"
        assert self._ask(foreign) == []

    def _groups(self) -> None:
        rows = self._ask(f"SELECT group_id, state FROM groups WHERE state IN {CLOSED}")  # noqa: S608
        for group, state in rows:
            if state != "rolled_back":
                self._stays(group, state)
            else:
                assert self._closed.get(group, "trained") in ("trained", state), group
                self._closed[group] = state

    def _journal(self, run: PausedRun) -> None:
        """An open episode has every step that its last attempt was told to be stored.

        An attempt that failed by itself leaves none, nor do two that were lost at one step.
        """
        assert run.kept.wrong == []
        rows = self._ask(
            "SELECT e.episode_id, e.reason, e.attempts,"
            " j.fence, j.number, j.parent_fence, j.attempt, j.body"
            " FROM episodes e LEFT JOIN journal j ON j.episode_id = e.episode_id"
            " WHERE e.run_id = :run AND e.state IN ('queued', 'running')"
            " ORDER BY e.episode_id, j.fence, j.number",
            run=run.run_id,
        )
        for (episode, reason, attempts), found in groupby(rows, key=lambda row: tuple(row[:3])):
            steps = chain([FormerStep(*row[3:]) for row in found if row[3] is not None])
            assert steps is not None, f"a step of {episode} is missing"
            stored_by = run.kept.attempt.get(episode, attempts)
            if steps or (reason in CONTINUABLE and attempts - stored_by <= 1):
                bodies = [decode_record(bytes(step.body)) for step in steps]
                kept = run.kept.of.get(episode, [])
                assert bodies[: len(kept)] == kept, (episode, reason, len(bodies), len(kept))

    def _stays(self, name: str, value: object) -> None:
        assert self._closed.setdefault(name, value) == value, (name, self._closed[name], value)

    def _positions(self, run: PausedRun) -> None:
        """No place of the stream is skipped, none repeated but after a roll-back."""
        rows = self._ask(
            "SELECT position, round, state FROM groups WHERE run_id = :run", run=run.run_id
        )
        last = Counter(position for position, _, _ in rows)
        assert sorted(last) == list(range(len(last))), rows
        for position, number, state in rows:
            assert (state == "rolled_back") or number == last[position] - 1, (position, rows)
        taken = sum(state in ("open", "ready") for _, _, state in rows)
        assert taken <= BOUND, rows

    def _lineage(self, run: PausedRun) -> None:
        """The weights of the newest live checkpoint learned each body of the live updates once."""
        rows = self._ask(
            "SELECT checkpoint_id, version, parent_id, path, state FROM checkpoints"
            " WHERE run_id = :run",
            run=run.run_id,
        )
        by_id = {row[0]: row for row in rows}
        live = {row[0] for row in rows if row[4] == "live"}
        newest = one = max((by_id[name] for name in live), key=lambda row: row[1])
        assert self.version(run) == newest[1]
        while True:  # down to the first, which has no parent
            assert one[4] != "rolled_back", rows
            live.discard(one[0])
            if one[2] is None:
                break
            assert by_id[one[2]][1] == one[1] - 1, rows
            one = by_id[one[2]]
        assert (one[1], live) == (0, set()), rows
        trained = self._ask(
            "SELECT u.episode_id, u.fence, u.sha256 FROM update_groups u"
            " JOIN updates v ON v.update_id = u.update_id"
            " WHERE v.run_id = :run AND v.state <> 'rolled_back'",
            run=run.run_id,
        )
        learned = self._weights(newest[3]) if newest[1] else []
        assert sorted(learned) == sorted(list(each) for each in trained), run.run_id
        assert len({episode for episode, *_ in learned}) == len(learned), learned

    def _weights(self, path: str) -> list[Any]:
        if path not in self._learned:
            self._learned[path] = json.loads((Path(path) / "learned.json").read_text())
        return self._learned[path]
