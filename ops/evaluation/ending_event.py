"""An event that ends what is measured."""

import threading


class EndingEvent(threading.Event):
    """Set by itself, or by another event that it never sets."""

    def __init__(self, other: threading.Event | None) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or (self._other is not None and self._other.is_set())
