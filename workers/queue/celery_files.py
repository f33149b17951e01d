"""The embedded Celery broker: kombu's filesystem transport with atomic messages.

kombu writes a message under its final name, so a consumer may read half of it and die, and moves it
to the folder of temporary files before it reads it, which may be full. Here a message gets its name
when it is complete, and is read in place. A malformed file is ignored: the dispatcher sends its
episode again later.
"""

import json
import time
import uuid
from contextlib import suppress
from pathlib import Path
from queue import Empty
from time import monotonic_ns
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import filesystem, virtual

from agentrl.core.logging import get_logger

LOOK_S = 0.2  # at most, within one wait for a message
PRUNE_S = 60.0  # between two looks for messages that have expired


class Channel(filesystem.Channel):
    """A channel with atomic messages that expire."""

    pruned_at = 0.0
    is_readable = True

    def _put(self, queue: str, payload: Any, **_options: Any) -> None:  # type: ignore[override]
        """Write a message. Raises ChannelError on a disk error."""
        folder = Path(self.data_folder_out)
        name = f"{monotonic_ns() // 1000:020}_{uuid.uuid4()}"
        partial = folder / f".{name}.partial"
        try:
            partial.write_text(json.dumps(payload))
            partial.rename(folder / f"{name}.{queue}.msg")
            expires_s = _expires_s(payload)
            if expires_s and time.monotonic() >= self.pruned_at + PRUNE_S:
                self.pruned_at = time.monotonic()
                _prune(folder, queue, expires_s)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise ChannelError(f"{folder}: {error.strerror}") from error

    def _get(self, queue: str, timeout: float | None = None) -> Any:  # noqa: ARG002 - kombu's
        """Return the next valid message; delete malformed files.

        Raises queue.Empty, also on a disk error, which would end Celery's consumer.
        """
        while True:
            try:
                payload = _take(Path(self.data_folder_in), queue)
                virtual.Message(payload, channel=self)  # type: ignore[no-untyped-call]
            except OSError as error:
                if self.is_readable:
                    get_logger().warning("Celery commands cannot be read", error=repr(error))
                self.is_readable = False
                raise Empty from error
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                get_logger().warning(
                    "Celery control command ignored", queue=queue, error=repr(error)
                )
            else:
                self.is_readable = True
                return payload


def _take(folder: Path, queue: str) -> Any:
    """Return the oldest message and delete its file; only one worker can delete it.

    Raises queue.Empty, OSError if the disk does not give it, and ValueError if it is malformed.
    """
    names = (path.name for path in folder.iterdir())
    for name in sorted(name for name in names if name.partition(".")[2] == f"{queue}.msg"):
        try:
            with (folder / name).open("rb") as message:
                (folder / name).unlink()
                return json.load(message)
        except FileNotFoundError:  # another worker was faster
            continue
    raise Empty


def _expires_s(payload: Any) -> float:
    """Return the expiry of a message in seconds; 0: never. AMQP has milliseconds, as text."""
    return float(payload["properties"].get("expiration") or 0) / 1000


def _prune(folder: Path, queue: str, older_s: float) -> None:
    for path in folder.glob(f"*.{queue}.msg"):
        try:
            if time.time() - path.stat().st_mtime > older_s:
                path.unlink()
        except FileNotFoundError:  # a worker was faster
            continue


class Transport(filesystem.Transport):
    """The transport for `Celery(broker_transport=…)`."""

    Channel = Channel

    def drain_events(self, connection: Any, timeout: float | None = None, **_options: Any) -> None:
        """Deliver one message. Raises TimeoutError after `timeout` seconds, or LOOK_S.

        Celery's loop waits 2 s, checks whether to stop, and waits once more: up to 4 s, longer than
        a stopping worker has.
        """
        soon = None if timeout is None else min(timeout, LOOK_S)
        super().drain_events(connection, timeout=soon)  # type: ignore[no-untyped-call]
