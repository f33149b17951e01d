"""An in-memory fsspec store that fails on command."""

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FaultyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """`faults`: raised one by one by the next transfers, or called with the file's local path."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[list[Exception | Callable[[str], object]]] = []
    short: ClassVar[set[str]] = set()  # names of files that arrive without their last byte
    unsized: ClassVar[set[str]] = set()  # names of files whose size it does not tell
    puts: ClassVar[list[str]] = []
    gets: ClassVar[list[str]] = []
    removing: ClassVar[list[Callable[[], object]]] = []  # called one by one by the next deletions
    reading: ClassVar[threading.Lock] = threading.Lock()  # a file has one place for all readers

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).replace("faulty://", "memory://"))

    away: ClassVar[list[Exception]] = []  # raised one by one by whoever connects
    expired: ClassVar[set[str]] = set()  # credentials that are denied
    credentials: ClassVar[str] = "first"  # that whoever connects finds

    def __init__(self, *args: Any, **options: Any) -> None:
        if self.away:
            raise self.away.pop(0)
        self._connected_with = self.credentials
        super().__init__(*args, **options)

    def _fail(self, lpath: str) -> None:
        if self._connected_with in self.expired:
            raise PermissionError("the token has expired")
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            fault(lpath)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self._fail(lpath)
        super().put_file(lpath, rpath, **options)
        name = rpath.rpartition("/")[2]
        self.puts.append(name)
        if name in self.short:
            self.short.discard(name)
            self.pipe_file(rpath, self.cat_file(rpath)[:-1])

    def rm_file(self, path: str) -> None:
        if self.removing:
            self.removing.pop(0)()
        super().rm_file(path)

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        self.gets.append(rpath.rpartition("/")[2])
        self._fail(lpath)
        with self.reading:
            super().get_file(rpath, lpath, **options)

    def size(self, path: str) -> int | None:
        found: int = super().size(path)
        return None if path.rpartition("/")[2] in self.unsized else found


def register() -> None:
    """Register the protocol, and forget what an earlier test left."""
    for kept in (
        FaultyFileSystem.store,
        FaultyFileSystem.faults,
        FaultyFileSystem.short,
        FaultyFileSystem.unsized,
        FaultyFileSystem.puts,
        FaultyFileSystem.gets,
        FaultyFileSystem.away,
        FaultyFileSystem.expired,
    ):
        kept.clear()
    FaultyFileSystem.credentials = "first"
    FaultyFileSystem.clear_instance_cache()
    FaultyFileSystem.pseudo_dirs[:] = [""]
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
