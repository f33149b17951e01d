"""A Hub on loopback that speaks as much of the Hub's protocol as a snapshot asks for."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Files of `owner/tiny` at `main`. `refusal`: (status, X-Error-Code) of every answer."""

    folder: Path
    url: str = ""
    commit: str = COMMIT
    refusal: tuple[int, str] | None = None
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a GET."""
        self.asked.append(path)
        if self.refusal is not None:
            status, code = self.refusal
            return status, {"X-Error-Code": code, "X-Error-Message": code}, b"{}"
        if path.startswith("/api/models/owner/tiny/revision/main"):
            return 200, {}, json.dumps({"id": "owner/tiny", "sha": self.commit}).encode()
        if path.startswith(f"/api/models/owner/tiny/tree/{self.commit}"):
            return 200, {}, json.dumps([self._entry(one) for one in self._files()]).encode()
        at = f"/owner/tiny/resolve/{self.commit}/"
        if path.startswith(at) and (self.folder / path.removeprefix(at)).is_file():
            body = (self.folder / path.removeprefix(at)).read_bytes()
            etag = hashlib.sha256(body).hexdigest()
            return 200, {"X-Repo-Commit": self.commit, "ETag": f'"{etag}"'}, body
        code = "RevisionNotFound" if "/revision/" in path else "RepoNotFound"
        return 404, {"X-Error-Code": code}, b"{}"

    def _files(self) -> list[Path]:
        return sorted(one for one in self.folder.rglob("*") if one.is_file())

    def _entry(self, path: Path) -> dict[str, Any]:
        body = path.read_bytes()
        name = str(path.relative_to(self.folder))
        oid = hashlib.sha256(body).hexdigest()
        return {"type": "file", "path": name, "size": len(body), "oid": oid}


@contextmanager
def serve_hub(folder: Path) -> Iterator[Hub]:
    """Serve a Hub until the block ends."""
    hub = Hub(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.tokens.add(self.headers.get("Authorization", ""))
            status, headers, body = hub.answer(self.path)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its signature
            """Tests say what they see."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fill_cache(cache: Path, folder: Path, commit: str = COMMIT) -> Path:
    """The model `owner/tiny` in a cache as huggingface_hub lays it out; its snapshot."""
    home = cache / "models--owner--tiny"
    snapshot = home / "snapshots" / commit
    for made in (home / "blobs", home / "refs", snapshot):
        made.mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    for path in folder.iterdir():
        blob = home / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
        blob.write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot
