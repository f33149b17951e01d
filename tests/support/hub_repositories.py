"""A Hub on loopback that creates repositories and takes commits, as the Hub's API does."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_owner"
SIGNATURE = "signature-of-an-upload"
LARGE = (".safetensors", ".parquet")  # what the Hub keeps by its digest
COMMIT = re.compile(r"/api/(dataset|model)s/(\w+/[\w-]+)/commit/main")
PREUPLOAD = re.compile(r"/api/(dataset|model)s/(\w+/[\w-]+)/preupload/main")
TREE = re.compile(r"/api/(dataset|model)s/(\w+/[\w-]+)/tree/main")
INFO = re.compile(r"/api/(dataset|model)s/(\w+/[\w-]+)")

Answer = tuple[int, Any]


@dataclass
class Repositories:
    """What was pushed. `files`: of each repository, by path; `private`: whether it is.

    `refuses`: status of every commit; 0: they are taken. `storage`: statuses of the next uploads.
    """

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    refuses: int = 0
    storage: list[int] = field(default_factory=list)
    _blobs: dict[str, bytes] = field(default_factory=dict)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        """Status and JSON of a request with the right token."""
        path = path.partition("?")[0]
        if method == "PUT" and path.startswith("/blobs/"):
            if self.storage:
                return self.storage.pop(0), {"error": "not now"}
            oid = path.removeprefix("/blobs/")
            right = hashlib.sha256(body).hexdigest() == oid
            self._blobs |= {oid: body} if right else {}
            return (200, {}) if right else (422, {"error": "other bytes than announced"})
        if match := TREE.fullmatch(path):
            return 200, [self._entry(*each) for each in self.files[self._name(match)].items()]
        if method == "GET" and (match := INFO.fullmatch(path)):
            return 200, {"id": match[2], "sha": "0" * 40}
        return self._post(path, body)

    def _post(self, path: str, body: bytes) -> Answer:
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if match := COMMIT.fullmatch(path):
            return self._commit(match, [json.loads(line) for line in body.splitlines()])
        asked = json.loads(body)
        if path == "/api/repos/create":
            return self._create(asked)
        if PREUPLOAD.fullmatch(path):
            return 200, {"files": [self._mode(each["path"]) for each in asked["files"]]}
        if path.endswith(".git/info/lfs/objects/batch"):
            return 200, {"objects": [self._upload(each) for each in asked["objects"]]}
        return 404, {"error": "no such address"}

    def _create(self, asked: Any) -> Answer:
        kind = asked.get("type", "model")
        name = f"{kind}s/{asked['organization']}/{asked['name']}"
        url = f"{self.url}/{name.removeprefix('models/')}"
        if name in self.files:
            return 409, {"error": "You already created this repository", "url": url}
        self.files[name] = {".gitattributes": b""}
        self.private[name] = asked.get("visibility") == "private"
        return 200, {"url": url}

    def _mode(self, path: str) -> dict[str, Any]:
        mode = "lfs" if path.endswith(LARGE) else "regular"
        return {"path": path, "uploadMode": mode, "shouldIgnore": False}

    def _upload(self, asked: Any) -> dict[str, Any]:
        """One object of the batch: where its bytes go, or that they are here."""
        object_ = {"oid": asked["oid"], "size": asked["size"]}
        if asked["oid"] in self._blobs:
            return object_
        href = f"{self.url}/blobs/{asked['oid']}?X-Amz-Signature={SIGNATURE}"
        return object_ | {"actions": {"upload": {"href": href}}}

    def _commit(self, match: re.Match[str], lines: list[Any]) -> Answer:
        if self.refuses:
            return self.refuses, {"error": "not now"}
        files = self.files[self._name(match)]
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self._blobs[value["oid"]]
            else:
                del files[value["path"]]
        oid = hashlib.sha1(repr(lines).encode()).hexdigest()  # noqa: S324 - as git names commits
        at = self._name(match).removeprefix("models/")
        return 200, {"commitUrl": f"{self.url}/{at}/commit/{oid}", "commitOid": oid}

    def _name(self, match: re.Match[str]) -> str:
        return f"{match[1]}s/{match[2]}"

    def _entry(self, path: str, body: bytes) -> dict[str, Any]:
        oid = hashlib.sha256(body).hexdigest()
        return {"type": "file", "path": path, "size": len(body), "oid": oid}


@contextmanager
def serve_repositories() -> Iterator[Repositories]:
    """Serve a Hub until the block ends. Another token than TOKEN is refused with 401."""
    hub = Repositories()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            signed = self.path.startswith("/blobs/")  # an address of its own, without the token
            if signed or self.headers.get("Authorization") == f"Bearer {TOKEN}":
                status, value = hub.answer(self.command, self.path, body)
            else:
                status, value = 401, {"error": "Invalid username or password."}
            answer = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        do_GET = do_PUT = do_POST  # noqa: N815 - the names that http.server looks for

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
