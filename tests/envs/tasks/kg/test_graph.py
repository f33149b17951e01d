"""Graphs in this process and behind a SPARQL endpoint, served here over the same store."""

import json
import lzma
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from urllib.parse import parse_qs

import pyoxigraph
import pytest
from kg_programs import parse

from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError
from agentrl.envs.tasks.kg.graph import Endpoint, LocalGraph
from agentrl.envs.tasks.kg.program import answers

SLOW = "SELECT ?a WHERE { ?a ?p ?b . ?c ?q ?d . ?e ?r ?f . ?g ?s ?h . ?i ?t ?j . ?k ?u ?l }"
QUERY = answers(parse("(JOIN (R people) m.oslo)"))
ANN = "<http://rdf.freebase.com/ns/m.ann>"
Answer = Callable[[str], tuple[int, bytes | Iterator[bytes]]]
Serve = Callable[[Answer], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """An endpoint whose status and body, whole or in parts, are what `answer` makes of a query;
    its URL."""
    servers: list[ThreadingHTTPServer] = []

    def started(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                assert self.headers["Content-Type"] == "application/x-www-form-urlencoded"
                query = parse_qs(self.rfile.read(length).decode())["query"][0]
                status, body = answer(query)
                self.send_response(status)
                if isinstance(body, bytes):
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(ConnectionError):  # the one who asked may have left
                    for part in [body] if isinstance(body, bytes) else body:
                        self.wfile.write(part)

            def log_message(self, *args: object) -> None:
                """Tests stay silent."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/sparql"

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


def over(graph: LocalGraph) -> Callable[[str], tuple[int, bytes]]:
    def answer(query: str) -> tuple[int, bytes]:
        found = graph.store.query(query).serialize(format=pyoxigraph.QueryResultsFormat.JSON)
        return 200, found

    return answer


def test_an_endpoint_finds_what_the_store_behind_it_holds(graph: LocalGraph, serve: Serve) -> None:
    endpoint = Endpoint(serve(over(graph)), timeout_s=10)
    for text in (
        "(JOIN (R people) m.oslo)",
        "(COUNT (JOIN home m.oslo))",
        "(ARGMAX (JOIN (R staff) m.acme) age)",
        "(AND (JOIN (R people) m.oslo) (JOIN (R staff) m.acme))",
        "(JOIN (R none) m.oslo)",
    ):
        query = answers(parse(text))
        assert sorted(endpoint.select(query)) == sorted(graph.select(query))


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (500, b"Virtuoso 42000 Error", "500 Virtuoso 42000 Error"),
        (404, b"", "404"),
        (200, b"<html>", "not a SPARQL result"),
        (200, b"[]", "not a SPARQL result"),
        (200, json.dumps({"head": {"vars": []}, "results": {}}).encode(), "not a SPARQL result"),
        (200, b'{"head": {"vars": ["x"]}, "results": {"bindings": [{"x": 1}]}}', "not a SPARQL"),
    ],
)
def test_a_broken_endpoint_is_the_environments_failure(
    serve: Serve, status: int, body: bytes, told: str
) -> None:
    endpoint = Endpoint(serve(lambda _: (status, body)), timeout_s=10)
    with pytest.raises(EnvironmentFailure, match=told):
        endpoint.select(QUERY)


def test_an_endpoint_that_is_slow_or_away_is_the_environments_failure(serve: Serve) -> None:
    given_up = Event()

    def slow(query: str) -> tuple[int, bytes]:
        given_up.wait(60)
        return 200, b""

    with pytest.raises(EnvironmentFailure, match="imed out"):
        Endpoint(serve(slow), timeout_s=0.1).select(QUERY)
    given_up.set()
    with pytest.raises(EnvironmentFailure, match="refused"):
        Endpoint("http://127.0.0.1:9/sparql", timeout_s=1).select(QUERY)
    with pytest.raises(ConfigError, match="not an http URL"):
        Endpoint("bolt://127.0.0.1", timeout_s=1)


def test_an_endpoint_that_trickles_does_not_outlast_its_time(serve: Serve) -> None:
    given_up = Event()

    def trickle() -> Iterator[bytes]:
        while not given_up.wait(0.02):
            yield b" "

    with pytest.raises(EnvironmentFailure, match="the answer came too slowly"):
        Endpoint(serve(lambda _: (200, trickle())), timeout_s=0.5).select(QUERY)
    given_up.set()


def test_an_answer_in_parts_is_read_whole(graph: LocalGraph, serve: Serve) -> None:
    _, body = over(graph)(QUERY)
    parts = (bytes([each]) for each in body)
    found = Endpoint(serve(lambda _: (200, parts)), timeout_s=30).select(QUERY)
    assert sorted(found) == sorted(graph.select(QUERY))


def test_dates_lose_the_zone_and_entities_their_namespace(serve: Serve) -> None:
    rows = [
        {"x": {"type": "uri", "value": "http://rdf.freebase.com/ns/m.ann"}},
        {"x": {"type": "literal", "value": "1999-05-01-08:00"}},
        {},
    ]
    body = json.dumps({"head": {"vars": ["x"]}, "results": {"bindings": rows}}).encode()
    found = Endpoint(serve(lambda _: (200, body)), timeout_s=10).select(QUERY)
    assert found == ["m.ann", "1999-05-01"]


def test_a_file_of_triples_is_read_plain_or_packed(tmp_path: Path) -> None:
    line = f"{ANN} <http://rdf.freebase.com/ns/a.b..c.d> <http://rdf.freebase.com/ns/m.bob> .\n"
    (tmp_path / "a.nt").write_text(line)
    (tmp_path / "a.nt.xz").write_bytes(lzma.compress(line.encode()))
    for name in ("a.nt", "a.nt.xz"):
        read = LocalGraph.read(tmp_path / name)
        assert len(read) == 1
        assert read.select(answers(parse("(JOIN (R a.b..c.d) m.ann)"))) == ["m.bob"]
        assert read.objects("m.ann", "a.b..c.d") == ["m.bob"]
        assert read.relations("m.ann") == ["a.b..c.d"]
        assert read.sources("m.bob") == [("m.ann", "a.b..c.d")]


def test_a_file_of_anything_else_is_an_item_error(tmp_path: Path) -> None:
    (tmp_path / "a.nt").write_text("no triples here\n")
    (tmp_path / "a.nt.xz").write_text("no triples here\n")
    for name in ("a.nt", "a.nt.xz", "missing.nt"):
        with pytest.raises(ItemError, match=name):
            LocalGraph.read(tmp_path / name)


def test_a_name_that_is_no_name_makes_no_graph() -> None:
    with pytest.raises(ItemError, match="is no name"):
        LocalGraph([("m.a", "r", "m.b> ; <x")])


def test_without_the_library_the_registry_loads_and_playing_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyoxigraph'] = None\n"
        "from agentrl.core.errors import ConfigError\n"
        "from agentrl.envs import registry\n"
        "source = registry.source('kg', {})\n"
        "try: source.items('train')\n"
        "except ConfigError as error: print(error, '|', error.hint)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == (
        "kg: a graph in this process needs pyoxigraph | run `pip install 'agentrl-system[tasks]'`"
    )


def test_a_query_that_takes_too_long_is_given_up() -> None:
    triples = [(f"m.{n}", "knows", f"m.{n + 1}") for n in range(50)]
    graph = LocalGraph(triples, timeout_s=0.05)
    with pytest.raises(EnvironmentFailure, match=r"a query took more than 0\.05 s"):
        graph.select(f"SELECT (COUNT(?a) AS ?n) WHERE {{ {{ {SLOW} LIMIT 3000000 }} }}")
    assert len(graph) == 50
