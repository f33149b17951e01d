"""The checkpoints that this server serves. No completion starts on one that is being replaced."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agentrl.core.errors import PolicyError

DRAIN_S = 2.5  # at the end of a process; requests that last longer fail


class NotServedError(PolicyError):
    """The checkpoint is not served here (any more). Another policy may be drawn."""


@dataclass(frozen=True, slots=True)
class ServedCheckpoint:
    checkpoint_id: str
    version: int


class ServedCheckpoints:
    """The served tracks, their checkpoints, and the running requests."""

    def __init__(self) -> None:
        self.problem = ""  # why less is served than should be, for people to read
        self._tracks: dict[str, ServedCheckpoint] = {}
        self._open: set[str] = set()
        self._under_way: dict[str, int] = {}
        self._changed = threading.Condition()

    def serve(self, track: str, checkpoint_id: str, version: int) -> None:
        """Serve a loaded checkpoint on a track; the former checkpoint stays open."""
        with self._changed:
            self._tracks[track] = ServedCheckpoint(checkpoint_id, version)
            self._open.add(checkpoint_id)

    def retire(self, checkpoint_id: str, timeout_s: float) -> bool:
        """Refuse new requests for a checkpoint on every track, and wait for running ones.

        Returns whether all of them ended in time.
        """
        with self._changed:
            self._open.discard(checkpoint_id)
            for track in [t for t, s in self._tracks.items() if s.checkpoint_id == checkpoint_id]:
                del self._tracks[track]
            return self._changed.wait_for(
                lambda: checkpoint_id not in self._under_way, timeout=timeout_s
            )

    def close(self, timeout_s: float = DRAIN_S) -> bool:
        """Refuse all requests and wait for running ones, like `retire`."""
        with self._changed:
            self._open.clear()
            self._tracks.clear()
            return self._changed.wait_for(lambda: not self._under_way, timeout=timeout_s)

    @contextmanager
    def request(self, checkpoint_id: str) -> Iterator[None]:
        """Hold a checkpoint for one request. Raises NotServedError."""
        with self._changed:
            if checkpoint_id not in self._open:
                raise NotServedError(f"this server does not serve checkpoint {checkpoint_id}")
            self._under_way[checkpoint_id] = self._under_way.get(checkpoint_id, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way[checkpoint_id] -= 1
                if not self._under_way[checkpoint_id]:
                    del self._under_way[checkpoint_id]
                    self._changed.notify_all()

    def tracks(self) -> dict[str, ServedCheckpoint]:
        with self._changed:
            return dict(self._tracks)

    def checkpoints(self) -> list[str]:
        """Return the open checkpoints."""
        with self._changed:
            return sorted(self._open)
