"""Episodes per second in sandboxes whose agent is root, each a lease, three commands, a release.

    DOCKER_HOST=… python benchmarks/sandboxes.py --image IMAGE [--concurrent 1 8 64]

Two arms in turn: containers used again (`reuse`), and one container an episode, as the os task has
it (`fresh`). `lease_ms` is the median wait for a container. Pools keep as many spares as there are
episodes at once, as a server that is tended does.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.program import OS, Program
from agentrl.envs.sandbox.sandbox import Sandboxes, Spec

SHELL = """
import json, subprocess, sys
for line in sys.stdin:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    print(json.dumps(done.stdout), flush=True)
"""
COMMANDS = (
    b"mkdir -p /root/work && echo one >/root/work/a",
    b"ls -la /etc | wc -l",
    b"cat /root/work/a",
)
REUSE = {"reuse": 1_000_000, "fresh": 1}
TEND_S = 0.2


def episode(pool: Sandboxes) -> float:
    """Milliseconds that the lease took."""
    began = time.perf_counter()
    sandbox = pool.lease()
    leased = time.perf_counter()
    for command in COMMANDS:
        answer = sandbox.channel.ask(command, 60)
    if json.loads(answer) != "one\n":
        raise SystemExit(f"the sandbox answered {answer!r}")
    pool.release(sandbox, sound=True)
    return 1e3 * (leased - began)


def measure(
    engine: Engine, image: str, reuse: int, concurrent: int, count: int
) -> tuple[float, float]:
    """Episodes a second; median milliseconds of a lease. The spares are there when it begins."""
    program = Program(("python3", "-I", "-c", SHELL))
    spec = Spec(image, program, OS, reuse=reuse, spares=concurrent)
    stop = threading.Event()

    def tend(pool: Sandboxes) -> None:
        while not stop.wait(TEND_S):
            try:
                pool.tend()
            except EnvironmentFailure as error:
                print(error, file=sys.stderr)

    with closing(Sandboxes(engine, spec)) as pool, ThreadPoolExecutor(concurrent + 1) as threads:
        pool.tend()
        tending = threads.submit(tend, pool)
        began = time.perf_counter()
        leases = list(threads.map(episode, [pool] * count))
        took = time.perf_counter() - began
        stop.set()
        tending.result()
    return count / took, statistics.median(leases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", required=True)
    parser.add_argument("--concurrent", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=8.0, help="of one arm, about")
    options = parser.parse_args()
    rows = []
    with closing(Engine("benchmark", os.environ.get("DOCKER_HOST"))) as engine:
        for concurrent in options.concurrent:
            row: dict[str, float] = {"concurrent": concurrent}
            for arm, reuse in REUSE.items():
                count = 2 * concurrent
                while True:
                    speed, lease = measure(engine, options.image, reuse, concurrent, count)
                    if count / speed >= options.seconds / 2:
                        break
                    count = int(max(2 * count, speed * options.seconds))
                row[f"{arm}_episodes_s"] = round(speed, 2)
                row[f"{arm}_lease_ms"] = round(lease, 1)
            rows.append(row)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
