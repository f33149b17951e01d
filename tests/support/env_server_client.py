"""Every request to a server of the task of counting_task.py, and what comes back.

The same requests go to the original's worker and to our server. `ours`: the status by which ours
differs from a worker that fails. The one in tests/envs/server/recorded is written with a worker of
tests/oracles/counting_worker.py, three sessions at once, at URL:

    python tests/support/env_server_client.py URL \
        > tests/envs/server/recorded/agentrl-worker-0.4.0.json
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import urllib3

PLACES = 3
Exchange = dict[str, Any]


def says(number: Any) -> dict[str, Any]:
    function = {"name": "add", "arguments": json.dumps({"number": number})}
    call = {"id": "c1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


HM = {"role": "assistant", "content": "hm"}
PARTS = {"role": "assistant", "content": [{"type": "text", "text": "hm"}]}


def start(session_id: int, index: int | str, **more: Any) -> Exchange:
    return post("start_sample", {"session_id": session_id, "index": index, **more})


def turn(session_id: int, *messages: Any) -> Exchange:
    return post("interact", {"session_id": session_id, "messages": list(messages)})


def post(verb: str, body: Any, **more: Any) -> Exchange:
    return {"method": "POST", "verb": verb, "body": body, **more}


def get(verb: str) -> Exchange:
    return {"method": "GET", "verb": verb}


def cancel(session_id: int, verb: str = "cancel") -> Exchange:
    return post(verb, {"session_id": session_id})


REQUESTS: list[Exchange] = [
    get("worker_status"),
    get("get_indices"),
    # an episode, and what is left of it
    start(1, 4),
    turn(1, HM),
    turn(1, says(2)),
    turn(1, HM, says(3)),
    turn(1, says(1)),
    cancel(1),
    # the id is free again, then taken
    start(1, 0),
    start(1, 0),
    turn(1, PARTS),
    cancel(1),
    cancel(1),
    # other ends
    start(2, -1, custom_task={"target": 3}),
    turn(2, says(5)),
    start(3, 4),
    turn(3, says("two")),
    start(4, 4),
    turn(4, says(13)),
    turn(4, says(1)),
    # what is wrong with a request
    post("interact", "{"),
    post("interact", {"session_id": 99, "messages": [HM]}),
    post("interact", {"messages": [HM]}),
    post("interact", {"session_id": "x", "messages": [HM]}),
    post("interact", [1]),
    post("start_sample", {"session_id": 9}),
    post("cancel", {"session_id": 99}),
    post("nowhere", {}),
    get("start_sample"),
    start(5, 19),
    {**turn(5), "ours": 422},
    {**post("interact", {"session_id": 5, "messages": None}), "ours": 422},
    {**turn(5, {"content": "no role"}), "ours": 422},
    {**start(10, "nowhere"), "ours": 400},
    turn(5, says(1)),
    # full, busy
    start(6, 1),
    start(7, 2),
    start(8, 3),
    get("get_sessions"),
    get("worker_status"),
    {**turn(5, says(7)), "background": True},
    {**turn(5, says(1)), "meanwhile": True},
    cancel(6, "cancel_with_notice"),
    post("cancel_all", None),
    get("get_sessions"),
    get("worker_status"),
]


def run_conversation(
    url: str,
    requests: list[Exchange] | None = None,
    *,
    begun: Callable[[], object] = lambda: time.sleep(0.7),
    over: Callable[[], object] = lambda: None,
) -> list[Exchange]:
    """Send the requests; return each with `status`, `session` (a header) and `answer`.

    `begun` returns once a request in the background is under way, by default after a part of the
    two seconds that 7 takes. `over` is called once those that are sent meanwhile are answered.
    """
    http = urllib3.PoolManager(maxsize=2, retries=False, timeout=10.0)
    said: list[Future[Exchange]] = []
    with ThreadPoolExecutor(2) as threads:
        for request in REQUESTS if requests is None else requests:
            if not request.get("meanwhile"):
                wait(said)
            said.append(threads.submit(_ask, http, url, request))
            if request.get("background"):
                begun()
            if request.get("meanwhile"):
                said[-1].result()
                over()
    return [each.result() for each in said]


def _ask(http: urllib3.PoolManager, url: str, request: Exchange) -> Exchange:
    body = request.get("body")
    content = body if isinstance(body, str) else json.dumps(body)
    reply = http.request(
        request["method"],
        f"{url}/{request['verb']}",
        body=content if request["method"] == "POST" else None,
        headers={"content-type": "application/json", "connection": "close"},
    )
    answer = json.loads(reply.data) if "json" in reply.headers["content-type"] else None
    session = reply.headers.get("session_id")
    return {**request, "status": reply.status, "session": session, "answer": answer}


@dataclass
class ControllerRequest:
    path: str
    body: Any
    session: str | None


class ControllerServer(ThreadingHTTPServer):
    """A controller that keeps what it receives."""

    daemon_threads = True

    def __init__(self, status: int = 200) -> None:
        told = self.told = list[ControllerRequest]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                told.append(ControllerRequest(self.path, body, self.headers.get("session_id")))
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/api"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def of(self, verb: str) -> list[ControllerRequest]:
        return [each for each in self.told if each.path == f"/api/{verb}"]

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()


if __name__ == "__main__":
    print(json.dumps(run_conversation(sys.argv[1]), indent=1))
