"""Kills env servers and their containers at random moments, then counts what is left.

    DOCKER_HOST=… python benchmarks/sandbox_kills.py --image IMAGE [--kills N] [--seed S]

A server here is a process with an engine, a pool, episodes on threads, and the tending of the real
one. A quarter of the containers ignore the end of their input: only a reaper removes those. Every
second kill takes a server, which another replaces; the others take a container. `left`: containers
once all servers are killed and one more has reaped; `harmed`: those a live server lost although
nobody killed them.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path

import docker
import docker.errors

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.logging import configure
from agentrl.envs.sandbox.docker_engine import RUN, Engine
from agentrl.envs.sandbox.program import Program, SandboxLimits
from agentrl.envs.sandbox.sandbox import Sandboxes, Spec

ECHO = """
import random, sys, time
for line in sys.stdin:
    print(line.strip(), flush=True)
while random.random() < 0.25:
    time.sleep(600)
"""
SERVERS = 3
EPISODES = 2  # at once, of one server
TEND_S, REAP_EVERY = 0.2, 5
SETTLE_S = 60.0


def client() -> docker.APIClient:
    return docker.APIClient(base_url=os.environ.get("DOCKER_HOST"))


def serve(image: str, run: str, told: Path, seed: int) -> None:
    """Episodes for ever; a line in `told` for each: its container, and whether that was lost."""
    engine = Engine(run)
    spec = Spec(image, Program(("python3", "-I", "-c", ECHO)), SandboxLimits(pids=16), reuse=3)
    pool = Sandboxes(engine, spec)
    for number in range(EPISODES):
        arguments = (pool, told, random.Random(seed + number))
        threading.Thread(target=play, args=arguments, daemon=True).start()
    for tick in range(1 << 62):
        if tick % REAP_EVERY == 0:
            engine.reap()
        pool.tend()
        time.sleep(TEND_S)


def play(pool: Sandboxes, told: Path, rng: random.Random) -> None:
    while True:
        try:
            sandbox = pool.lease()
        except EnvironmentFailure:  # killed while it was being made
            continue
        sound = True
        try:
            for _ in range(3):
                sandbox.channel.ask(b"hello", 30)
                time.sleep(rng.random() * 0.1)
        except EnvironmentFailure:
            sound = False
        with told.open("a") as file:
            file.write(f"{sandbox.container} {'kept' if sound else 'lost'}\n")
        pool.release(sandbox, sound=sound)


class Chaos:
    """The servers, and who kills them."""

    def __init__(self, image: str, seed: int, folder: Path) -> None:
        self._image = image
        self._run = f"kills-{seed}-{os.getpid()}"
        self._told = folder / "told"
        self._rng = random.Random(seed)
        self._context = multiprocessing.get_context("fork")
        self._servers: list[BaseProcess] = []
        self.killed: set[str] = set()
        self.servers_killed = 0

    def kill(self, count: int) -> None:
        with closing(client()) as api:
            for number in range(count):
                while len(self._servers) < SERVERS:
                    self._servers.append(self._server())
                time.sleep(self._rng.random() * 0.4)
                if number % 2:
                    self._kill_container(api)
                else:
                    self._kill_server()
        while self._servers:
            self._kill_server()

    def left(self) -> tuple[int, int, float]:
        """Containers before and after a reaping, and the seconds that took."""
        began = time.monotonic()
        with closing(Engine(self._run)) as engine, closing(client()) as api:
            before = len(self._containers(api))
            while time.monotonic() - began < SETTLE_S:
                engine.reap()
                if not (after := len(self._containers(api))):
                    break
                time.sleep(0.5)
        return before, after, time.monotonic() - began

    def told(self) -> dict[str, int]:
        """Episodes, those whose container was lost, those of them that nobody killed."""
        lines = [line.split() for line in self._told.read_text().splitlines()]
        lost = [container for container, end in lines if end == "lost"]
        harmed = [container for container in lost if container not in self.killed]
        return {"episodes": len(lines), "lost": len(lost), "harmed": len(harmed)}

    def _server(self) -> BaseProcess:
        arguments = (self._image, self._run, self._told, self._rng.randrange(1 << 30))
        process = self._context.Process(target=serve, args=arguments)
        process.start()
        return process

    def _kill_server(self) -> None:
        process = self._servers.pop(self._rng.randrange(len(self._servers)))
        process.kill()
        process.join()
        self.servers_killed += 1

    def _kill_container(self, api: docker.APIClient) -> None:
        there = self._containers(api)
        if not there:
            return
        container = self._rng.choice(there)
        self.killed.add(container)
        with contextlib.suppress(docker.errors.APIError):  # not started yet, or gone meanwhile
            api.kill(container)

    def _containers(self, api: docker.APIClient) -> list[str]:
        listed = api.containers(all=True, filters={"label": f"{RUN}={self._run}"})
        return sorted(each["Id"] for each in listed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", required=True)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    configure("kills", level="ERROR")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(options.image, options.seed, Path(folder))
        chaos.kill(options.kills)
        before, after, settled_s = chaos.left()
        row = {
            "kills": options.kills,
            "servers_killed": chaos.servers_killed,
            "containers_killed": len(chaos.killed),
            **chaos.told(),
            "before_reaping": before,
            "left": after,
            "settled_s": round(settled_s, 1),
            "seconds": round(time.monotonic() - began, 1),
        }
    print(json.dumps(row))
    sys.exit(bool(after))


if __name__ == "__main__":
    main()
