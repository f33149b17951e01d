"""The track follower: loads the checkpoint that the registry assigns to a track, and records it.

    live lineage ─▶ wanted(track) ─▶ verify, load, probe ─▶ row `serving` ─▶ requests accepted
                                     former checkpoint: refused, drained, unloaded ─▶ row closed

An engine that exchanges weights in place does the lower line first. Requests that drain too long
are aborted. Only one server of a track does so at a time; the others keep serving. If the engine
bounds how many replaced checkpoints drain, a track keeps its checkpoint until one of them has.

A serving row is opened before the first request and closed after the last, so every sampled token
lies inside one. If a checkpoint cannot be loaded, this is logged once and the former checkpoint
stays or is loaded again. If an engine lost a checkpoint in a restart, its row is closed at once and
the checkpoint is loaded again.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.core.errors import ConfigError
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import policy_servers
from agentrl.db.registry.tracks import parse_track, select_checkpoint
from agentrl.db.store import Store
from agentrl.serving.checkpoint_loader import MOST_OFF, CheckpointLoader, LoadingEngine
from agentrl.serving.served_checkpoints import ServedCheckpoints

DRAIN_S = 30.0  # requests of a former checkpoint that last longer fail or are aborted
ABORT_S = 1.0  # for what an engine aborted to be answered

log = get_logger()


@dataclass(frozen=True, slots=True)
class FollowerConfig:
    """Settings of a follower. `drain_s`: for a replaced checkpoint.

    `tolerance`, `cache`, `stop`: see `CheckpointLoader`.
    """

    server_id: str
    tracks: Sequence[str]
    tolerance: float = MOST_OFF["float32"]
    drain_s: float = DRAIN_S
    cache: Path = Path("cache")
    stop: threading.Event | None = None


@dataclass(slots=True)
class RetiringCheckpoint:
    """A replaced checkpoint, its tracks, and the time until which it may drain."""

    deadline: float
    tracks: list[str] = field(default_factory=list)


class Follower:
    """Follows the tracks of a server. For one thread. `step` does not wait for running requests."""

    def __init__(
        self,
        engine: LoadingEngine,
        served: ServedCheckpoints,
        store: Store,
        follower_config: FollowerConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError for an unknown track, or for more tracks than the engine holds."""
        for track in follower_config.tracks:
            parse_track(track)
        if engine.places is not None and len(follower_config.tracks) > engine.places:
            raise ConfigError(
                f"policy.tracks: {len(follower_config.tracks)} tracks, "
                f"but the engine serves {engine.places}",
                hint="give each track a [[policy]] of its own",
            )
        self._in_place = engine.places is not None
        self._draining_policies = engine.draining_policies
        self._loader = CheckpointLoader(
            engine, follower_config.tolerance, follower_config.cache, follower_config.stop, clock
        )
        self._clock = clock
        self._served = served
        self._store = store
        self._config = follower_config
        self._missing: set[str] = set()
        self._leaving: dict[str, RetiringCheckpoint] = {}
        self._order = list(follower_config.tracks)  # whose last switch is the longest ago is first
        self._last: dict[str, Checkpoint] = {}  # what each track was served from
        self._is_exchanging = False  # in place: other servers of the track wait

    @property
    def is_retrying(self) -> bool:
        """Return whether a checkpoint drains, so that `step` must be called again soon."""
        return bool(self._leaving)

    def problem(self) -> str:
        return self._loader.problem()

    def step(self, live: Sequence[Checkpoint]) -> None:
        """Move every track to its checkpoint of the live lineage, and drop unused checkpoints."""
        self._close_lost()
        for track in list(self._order):
            checkpoint = self._select(track, live)
            if checkpoint is None:
                continue
            self._switch(track, checkpoint)
            if self._loader.is_refused(checkpoint.checkpoint_id):
                self._switch(track, self._last.get(track))
        self._end_retiring()

    def _switch(self, track: str, checkpoint: Checkpoint | None) -> None:
        """Move one track to one checkpoint, as far as possible in this step."""
        if checkpoint is None:
            return
        name = checkpoint.checkpoint_id
        current = self._served.tracks().get(track)
        if current and current.checkpoint_id == name:
            return
        if not self._make_room(track, checkpoint):
            return
        if self._loader.load(checkpoint):
            self._serve(track, checkpoint)
            if current and not self._in_place:
                self._retire(track, current.checkpoint_id)
        self._end_exchange()

    def _make_room(self, track: str, checkpoint: Checkpoint) -> bool:
        """Return whether the engine may hold the checkpoint now.

        In place it may not until the track's checkpoint, which this retires, has drained.
        """
        if self._in_place:
            return self._vacate(track, checkpoint)
        name = checkpoint.checkpoint_id
        held = self._leaving.keys() | self._serving_ids()
        if name in held:
            leaving = self._leaving.get(name)
            return leaving is None or track not in leaving.tracks
        if self._draining_policies is None:
            return True
        return len(held) < len(self._config.tracks) + self._draining_policies

    def _vacate(self, track: str, checkpoint: Checkpoint) -> bool:
        """Retire the track's checkpoint if another one can be loaded; return whether it is gone."""
        current = self._served.tracks().get(track)
        if self._loader.has_files(checkpoint):
            if current:
                if not self._begin_exchange(track):
                    return False
                self._retire(track, current.checkpoint_id)
            self._end_retiring()
        return not self._leaving

    def _serving_ids(self) -> set[str]:
        return {serving.checkpoint_id for serving in self._served.tracks().values()}

    def _begin_exchange(self, track: str) -> bool:
        """Return whether this server may stop serving the track now."""
        server_id = self._config.server_id
        self._is_exchanging = self._store.transact(
            lambda session: policy_servers.begin_exchange(session, server_id, track)
        )
        return self._is_exchanging

    def _end_exchange(self) -> None:
        """Allow another server to exchange weights, whether this one succeeded or not."""
        if self._is_exchanging:
            server_id = self._config.server_id
            self._store.transact(lambda session: policy_servers.end_exchange(session, server_id))
            self._is_exchanging = False

    def _select(self, track: str, live: Sequence[Checkpoint]) -> Checkpoint | None:
        """Return the checkpoint of a track; its former one if the new one is refused."""
        try:
            name = select_checkpoint(track, [(row.version, row.checkpoint_id) for row in live])
        except ConfigError:  # nothing is live yet
            return None
        if self._loader.is_refused(name):
            return self._last.get(track)
        rows = {row.checkpoint_id: row for row in live}
        return rows.get(name) or self._find_present(name)

    def _find_present(self, checkpoint_id: str) -> Checkpoint | None:
        """Return a pinned checkpoint outside the live lineage."""
        row = self._store.ask(lambda session: session.get(Checkpoint, checkpoint_id))
        if row is None and checkpoint_id not in self._missing:
            self._missing.add(checkpoint_id)
            log.error("Pinned checkpoint does not exist", checkpoint_id=checkpoint_id)
        return row

    def _serve(self, track: str, checkpoint: Checkpoint) -> None:
        server_id = self._config.server_id
        self._store.transact(
            lambda session: policy_servers.begin_serving(session, server_id, track, checkpoint)
        )
        self._served.serve(track, checkpoint.checkpoint_id, checkpoint.version)
        self._last[track] = checkpoint
        self._order.remove(track)
        self._order.append(track)
        metrics.SWAPS.labels(track=track).inc()
        metrics.SERVED.labels(track=track).set(checkpoint.version)
        log.info("Serving track", track=track, version=checkpoint.version)

    def _retire(self, track: str, checkpoint_id: str) -> None:
        leaving = RetiringCheckpoint(self._clock() + self._config.drain_s)
        self._leaving.setdefault(checkpoint_id, leaving).tracks.append(track)
        if self._in_place:
            self._served.retire(checkpoint_id, timeout_s=0.0)

    def _end_retiring(self) -> None:
        """Close rows of checkpoints that still serve another track; drain and unload the others."""
        serving_ids = self._serving_ids()
        for name, leaving in list(self._leaving.items()):
            if name not in serving_ids:
                drained = self._served.retire(name, timeout_s=0.0)
                if not drained and self._clock() < leaving.deadline:
                    continue
                self._loader.unload(name)
                self._served.retire(name, timeout_s=ABORT_S)
            self._close_row(name, leaving.tracks)
            del self._leaving[name]

    def _close_lost(self) -> None:
        """Close the rows of checkpoints that the engine lost; their requests have failed."""
        tracks = self._served.tracks()
        for name in self._loader.take_lost():
            on = [track for track, serving in tracks.items() if serving.checkpoint_id == name]
            self._served.retire(name, timeout_s=0.0)
            leaving = self._leaving.pop(name, None)
            self._close_row(name, [*on, *(leaving.tracks if leaving else [])])
            log.error("Engine lost a checkpoint", checkpoint_id=name)

    def _close_row(self, checkpoint_id: str, tracks: Sequence[str]) -> None:
        server_id = self._config.server_id
        for track in tracks:
            self._store.transact(
                lambda session, track=track: policy_servers.end_serving(  # type: ignore[misc]
                    session, server_id, track, checkpoint_id
                )
            )
