"""Turns a second of the whole path against `verifiers` 0.4.0 on the same five-turn episodes.

    python benchmarks/beside_verifiers.py --store POSTGRES --broker AMQP --verifiers PYTHON
        [--workers 1 2] [--episodes 1000] [--concurrency 64] [--rounds 2]

PYTHON: of an environment made by `pip install verifiers==0.4.0 aiohttp`. Each round runs verifiers
in one process, against a chat server that answers at once, and then ours as `pipeline.py` does,
policy server and database included, with so many workers. The two are not the same to the letter:
an answer of their chat server is JSON of 109 tokens, through verifiers' interception server; ours
is ids of our scripted engine, in a process of its own. They warm up with 64 episodes, ours does
not. verifiers' harness plays within its process (`verifiers_arm.py`), not in a program for each
episode, its default. `ratio`: our turns a
second over its own of the same round; `ratio_cpu`: turns of a second of the workers' processor time
over those of its process.
"""

import argparse
import json
import multiprocessing
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import uvicorn
from pipeline import run
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentrl.db.admin import migrate
from agentrl.db.store import open_store

ARM = Path(__file__).with_name("verifiers_arm.py")
WARM = 64  # episodes before the clock starts
CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"thing": "lamp"}'},
}
SAID = {
    "id": "1",
    "object": "chat.completion",
    "created": 0,
    "model": "scripted",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": None, "tool_calls": [CALL]},
        }
    ],
    "usage": {"prompt_tokens": 100, "completion_tokens": 9, "total_tokens": 109},
}


async def said(request: Request) -> JSONResponse:
    await request.body()
    return JSONResponse(SAID)


def serve(bound: socket.socket) -> None:
    """The policy that verifiers asks: always the same tool call."""
    app = Starlette(routes=[Route("/v1/chat/completions", said, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[bound])


@contextmanager
def chat() -> Iterator[str]:
    """The address of such a server in a process of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as bound:
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(bound,))
        process.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            process.terminate()
            process.join(10)


def verifiers(given: argparse.Namespace) -> Mapping[str, float]:
    """Turns a second, and of a second of processor time."""
    numbers = (given.concurrency, WARM, given.episodes)
    with chat() as url:
        argv = [given.verifiers, str(ARM), url, *map(str, numbers)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    return {"steps_s": told["turns"] / told["s"], "steps_cpu_s": told["turns"] / told["cpu_s"]}


def compared(given: argparse.Namespace, home: Path) -> Iterator[Mapping[str, float]]:
    """Each round's figures, a line for each number of workers."""
    for _ in range(given.rounds):
        theirs = verifiers(given)
        for workers in given.workers:
            ours = run(given, workers, home)
            yield {
                "workers": workers,
                "verifiers_steps_s": theirs["steps_s"],
                "steps_s": ours["steps_s"],
                "ratio": ours["steps_s"] / theirs["steps_s"],
                "ratio_cpu": ours["steps_worker_cpu_s"] / theirs["steps_cpu_s"],
            }


def main() -> None:
    """Rounds, then the median ratio for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--verifiers", required=True)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args(namespace=argparse.Namespace(pause=0.0))
    with closing(open_store(given.store)) as store:
        migrate.upgrade(store)
    found: dict[float, list[float]] = {}
    with tempfile.TemporaryDirectory() as home:
        for line in compared(given, Path(home)):
            found.setdefault(line["workers"], []).append(line["ratio"])
            print(json.dumps(line), flush=True)
    print(json.dumps({f"ratio_{n:g}": statistics.median(each) for n, each in found.items()}))


if __name__ == "__main__":
    main()
