"""The games of ALFWorld's release, from its folder or straight from an archive of it.

An archive is read once, from end to end, into an index in the user's cache folder.
"""

import base64
import hashlib
import json
import os
import re
import sqlite3
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import IO, Any, Protocol, cast

import msgspec

from agentrl.core.errors import ItemError
from agentrl.envs.tasks import datasets
from agentrl.envs.tasks.alfworld.datasets import ARCHIVE, GAMES, LIST

FILE = "game.tw-pddl"
MOST_BYTES = 1 << 20  # of a text, unpacked
TASK = re.compile(r'"rhs":\s*"Your task is to: ([^"]*)"')
MARK = "UNKNOWN GOAL"  # where the task's sentence stands in ALFWorld's own grammar


class PackedGame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The texts of a game, compressed, as an item holds them; `grammar` has a mark for `task`.

    It holds all that an environment needs, so that it can be played where no data lie.
    """

    domain: str
    grammar: str
    problem: str
    task: str

    def texts(self) -> tuple[str, str, str]:
        """Return domain, problem and grammar. Raises ValueError."""
        grammar = unpack(self.grammar).replace(MARK, self.task)
        return unpack(self.domain), unpack(self.problem), grammar


@dataclass(frozen=True, slots=True)
class Game:
    """`path`: of its file, as AgentBench lists it. `walkthrough`: the commands that win it."""

    path: str
    packed: PackedGame
    walkthrough: tuple[str, ...]

    def embedded(self) -> dict[str, Any]:
        """Return the game as its file holds it."""
        domain, problem, grammar = self.packed.texts()
        return {"pddl_domain": domain, "pddl_problem": problem, "grammar": grammar}


class Release(Protocol):
    """The games of a release, by path."""

    def paths(self) -> Sequence[str]:
        """Return the paths of all games, sorted."""

    def game(self, path: str) -> Game:
        """Read one game. Raises ItemError."""


def release(data: str = "") -> Release:
    """Open the release's folder, or else its archive. Raises ItemError."""
    root = datasets.folder(data)
    if root and not GAMES.missing(root):
        return Folder(root / "alfworld")
    if root and not ARCHIVE.missing(root):
        return Archive(root / ARCHIVE.paths[0])
    return Folder(datasets.locate(GAMES, data) / "alfworld")


def listed_games(data: str = "", dataset: datasets.Dataset = LIST) -> list[str]:
    """Return the paths of one of AgentBench's lists, in its order. Raises ItemError."""
    path = datasets.locate_file(dataset, dataset.paths[0], data)
    kinds = datasets.read_json(path, dict[str, list[str]])
    return [game for games in kinds.values() for game in games]


class Folder:
    """A Release in a folder of files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def paths(self) -> Sequence[str]:
        found = (self._root / "json_2.1.1").rglob(FILE)
        return sorted(path.relative_to(self._root).as_posix() for path in found)

    def game(self, path: str) -> Game:
        try:
            return read(path, (self._root / path).read_bytes())
        except OSError as error:
            raise ItemError(f"alfworld: no game {path}: {error}") from error


class Archive:
    """A Release in a tar archive, with an index that the first request builds."""

    def __init__(self, path: Path, cache: Path | None = None) -> None:
        self.path = path
        self._cache = cache or _cache()
        self._index: Path | None = None

    def paths(self) -> Sequence[str]:
        return [path for (path,) in self._ask("SELECT path FROM games ORDER BY path")]

    def game(self, path: str) -> Game:
        rows = self._ask("SELECT packed, walkthrough FROM games WHERE path = ?", path)
        if not rows:
            raise ItemError(f"alfworld: no game {path} in {self.path}")
        packed = msgspec.json.decode(rows[0][0], type=PackedGame)
        return Game(path, packed, tuple(json.loads(rows[0][1])))

    def _ask(self, sql: str, *values: str) -> list[tuple[str, ...]]:
        self._index = self._index or self._ready()
        where = f"{self._index.resolve().as_uri()}?mode=ro"  # never makes an empty one
        try:
            with closing(sqlite3.connect(where, uri=True)) as index:
                return index.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            hint = f"delete the index with `rm -f {self._index}`; it is built again"
            raise ItemError(f"alfworld: index {self._index}: {error}", hint=hint) from error

    def _ready(self) -> Path:
        state = self.path.stat()
        name = f"{self.path.resolve()} {state.st_size} {state.st_mtime_ns}"
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        index = self._cache / f"alfworld-{digest}.db"
        if not index.exists():
            try:
                self._cache.mkdir(parents=True, exist_ok=True)
                self._build(index)
            except (OSError, tarfile.TarError, EOFError, sqlite3.Error) as error:
                raise ItemError(f"alfworld: {self.path}: {error}") from error
        return index

    def _build(self, index: Path) -> None:
        """Build the index beside its final path, so that an existing index is always whole."""
        part = index.with_suffix(f".{os.getpid()}-{get_ident()}")
        part.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(part)) as made:
                made.execute(
                    "CREATE TABLE games (path TEXT PRIMARY KEY, packed TEXT, walkthrough TEXT)"
                )
                for game in self._read():
                    packed = msgspec.json.encode(game.packed).decode()
                    row = (game.path, packed, json.dumps(game.walkthrough))
                    made.execute("INSERT OR REPLACE INTO games VALUES (?, ?, ?)", row)
                made.commit()
            part.replace(index)
        finally:
            part.unlink(missing_ok=True)

    def _read(self) -> Iterator[Game]:
        with tarfile.open(self.path, "r|*") as archive:
            for member in archive:
                if member.isfile() and Path(member.name).name == FILE:
                    file = cast(IO[bytes], archive.extractfile(member))
                    yield read(member.name.removeprefix("./"), file.read())


def read(path: str, content: bytes) -> Game:
    """Parse a game from its file's text. Raises ItemError."""
    try:
        found = json.loads(content)
        grammar = found["grammar"]
        task = TASK.search(grammar)
        sentence = task[1] if task else ""
        if task:
            grammar = grammar[: task.start(1)] + MARK + grammar[task.end(1) :]
        domain, problem = (pack(_bare(found[f"pddl_{part}"])) for part in ("domain", "problem"))
        packed = PackedGame(domain, pack(grammar), problem, sentence)
        return Game(path, packed, tuple(found.get("walkthrough") or ()))
    except (ValueError, KeyError, TypeError) as error:
        raise ItemError(f"alfworld: game {path}: {error!r}") from error


def pack(text: str) -> str:
    return base64.b85encode(zlib.compress(text.encode(), 9)).decode()


def unpack(text: str) -> str:
    """Decompress texts. Raises ValueError, also for a text over a megabyte."""
    reader = zlib.decompressobj()
    try:
        content = reader.decompress(base64.b85decode(text), MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"not packed: {error}") from error
    if not reader.eof:
        raise ValueError("not packed: cut short, or too large")
    return content.decode()


def _bare(pddl: str) -> str:
    """Strip comments and repeated spaces."""
    return " ".join(re.sub(r";[^\n]*", "", pddl).split())


def _cache() -> Path:
    given: Mapping[str, str] = os.environ
    base = given.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "agentrl"
