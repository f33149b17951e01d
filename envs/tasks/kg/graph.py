"""Graphs on which programs run: an item's small graph, a large shared one, or a SPARQL endpoint."""

import json
import lzma
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import urllib3

from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError
from agentrl.core.http.answers import read_answer
from agentrl.envs.call_timeouts import call_within
from agentrl.envs.tasks.kg.program import NAME, NAMESPACE

TIMEOUT_S = 30.0  # of one query
_NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?")
_XSD = "http://www.w3.org/2001/XMLSchema#"
_ZONE = "-08:00"  # of every date in the original's Freebase; never part of an answer

Triple = tuple[str, str, str | int | float]


class Graph(Protocol):
    """Answers queries of many episodes at once."""

    def select(self, query: str) -> list[str]:
        """Return the one column of a query. Raises EnvironmentFailure."""


class LocalGraph:
    """A pyoxigraph store in this process."""

    def __init__(
        self,
        triples: Iterable[Triple] = (),
        attributes: Iterable[Triple] = (),
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`triples` end in entities, `attributes` in values; `timeout_s`: of one query.

        Raises ConfigError, ItemError.
        """
        self._timeout_s = timeout_s
        self._library = _library()
        self.store = self._library.Store()
        quad = self._library.Quad
        self.store.extend(quad(_node(s), _node(r), _node(str(o))) for s, r, o in triples)
        self._add_attributes(attributes)

    @classmethod
    def read(cls, path: Path, *, timeout_s: float = TIMEOUT_S) -> "LocalGraph":
        """Read a file of N-Triples, .xz or plain. Raises ConfigError, ItemError."""
        graph = cls(timeout_s=timeout_s)
        opened = lzma.open if path.suffix == ".xz" else open
        try:
            with opened(path, "rb") as file:
                graph.store.bulk_load(input=file, format=graph._library.RdfFormat.N_TRIPLES)
        except (OSError, EOFError, lzma.LZMAError, SyntaxError) as error:
            raise ItemError(f"{path}: {error}") from error
        return graph

    def select(self, query: str) -> list[str]:
        """On a thread of its own: nothing stops the library, but it leaves Python to others."""

        def answer() -> list[str]:
            return [plain(row[0].value) for row in self.store.query(query)]

        try:
            return call_within(answer, self._timeout_s, "kg: a query")
        except (SyntaxError, OSError, ValueError) as error:
            raise EnvironmentFailure(f"kg: query failed: {error}") from error

    def objects(self, subject: str, relation: str) -> list[str]:
        """Return the objects of `subject` and `relation`, ordered by name."""
        pattern = _node(subject), _node(relation), None
        return sorted(plain(quad.object.value) for quad in self.store.quads_for_pattern(*pattern))

    def relations(self, subject: str) -> list[str]:
        """Return the relations of `subject`, ordered by name."""
        pattern = _node(subject), None, None
        quads = self.store.quads_for_pattern(*pattern)
        return sorted({plain(quad.predicate.value) for quad in quads})

    def sources(self, member: str) -> list[tuple[str, str]]:
        """Return the subjects and relations that lead to `member`, ordered by name."""
        quads = self.store.quads_for_pattern(None, None, _node(member))
        return sorted((plain(quad.subject.value), plain(quad.predicate.value)) for quad in quads)

    def __len__(self) -> int:
        return len(self.store)

    def _add_attributes(self, attributes: Iterable[Triple]) -> None:
        """The values of an attribute are numbers where all of them look like one, else text."""
        values = defaultdict(list)
        for subject, attribute, value in attributes:
            values[attribute].append((subject, str(value)))
        for attribute, pairs in values.items():
            numbers = all(_NUMBER.fullmatch(value) for _, value in pairs)
            kind = self._library.NamedNode(f"{_XSD}{'decimal' if numbers else 'string'}")
            self.store.extend(
                self._library.Quad(
                    _node(subject),
                    _node(attribute),
                    self._library.Literal(value, datatype=kind),
                )
                for subject, value in pairs
            )


@lru_cache(maxsize=50_000)
def _node(name: str) -> Any:
    if not NAME.fullmatch(name):
        raise ItemError(f"kg: {name[:40]!r} is no name of an entity or a relation")
    return _library().NamedNode(NAMESPACE + name)


class Endpoint:
    """A SPARQL 1.1 endpoint, as Virtuoso's. `timeout_s`: seconds of wall clock for one query."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """Raises ConfigError."""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"kg: endpoint {url} is not an http URL")
        self._url, self._timeout_s = url, timeout_s
        self._http = urllib3.PoolManager(
            maxsize=8, retries=False, timeout=urllib3.Timeout(total=timeout_s)
        )

    def select(self, query: str) -> list[str]:
        where = f"kg: endpoint {self._url}"
        try:
            status, body = self._post_query(query)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise EnvironmentFailure(f"{where}: {error}") from error
        if status != 200:
            told = body[:200].decode(errors="replace").strip()
            raise EnvironmentFailure(f"{where}: {status} {told}")
        return _column(body, self._url)

    def _post_query(self, query: str) -> tuple[int, bytes]:
        deadline = time.monotonic() + self._timeout_s
        headers = {"Accept": "application/sparql-results+json"}
        answer = self._http.request(
            "POST", self._url, fields={"query": query}, headers=headers, encode_multipart=False,
            preload_content=False,
        )  # fmt: skip
        return answer.status, read_answer(answer, deadline)


def plain(value: str) -> str:
    """Format a value as the benchmark writes it."""
    return value.removeprefix(NAMESPACE).replace(_ZONE, "")


def _column(body: bytes, url: str) -> list[str]:
    try:
        found = json.loads(body)
        names: Sequence[str] = found["head"]["vars"]
        rows = found["results"]["bindings"]
        return [plain(row[names[0]]["value"]) for row in rows if names[0] in row]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        text = f"kg: endpoint {url}: not a SPARQL result"
        raise EnvironmentFailure(text) from error


def _library() -> ModuleType:
    try:
        import pyoxigraph
    except ImportError as error:
        raise ConfigError(
            "kg: a graph in this process needs pyoxigraph",
            hint="run `pip install 'agentrl-system[tasks]'`",
        ) from error
    return pyoxigraph
