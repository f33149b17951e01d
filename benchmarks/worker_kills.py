"""Sampled tokens a second of a run whose workers are killed, against the same run undisturbed.

    AGENTRL_POSTGRES_URL=… AGENTRL_AMQP_URL=… DOCKER_HOST=… python benchmarks/worker_kills.py \
        configs/cluster-cpu.toml [--workers 4] [--every 10] [--seconds 120] \
        [--journal off steps] [--rounds 1]

For each value of `worker.journal`, in turn: a run without kills, then one in which one of its
`--workers` gets SIGKILL every `--every` seconds, each in a folder of its own. Measured are
`--seconds` after the first update: `tokens_per_s`, sampled tokens of the episodes that ended then;
`kills`; `resampled`, tokens that policy servers sampled and nobody kept, per kill; `unaccounted`,
rows of the view `accounting` at the end. `share`: tokens a second with kills ÷ without.
"""

import argparse
import json
import math
import signal
import tempfile
import time
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from sqlalchemy import text

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.logging import configure
from agentrl.db.store import open_store
from agentrl.ops.chaos.cluster import Cluster
from agentrl.ops.chaos.observer import RunObserver, role_of
from agentrl.ops.runs.begin import begin

Journal = Literal["off", "steps"]
FIRST_S = 300.0  # for the first update
TOKENS = text("SELECT sum(loss_tokens) FROM episodes WHERE run_id = :run AND state = 'finished'")
ACCOUNTING = text("SELECT count(*) FROM accounting WHERE run_id = :run")


def main() -> None:
    configure("benchmark", level="ERROR")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--workers", type=int, default=4, help="worker processes of a run")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two kills")
    parser.add_argument("--seconds", type=float, default=120.0, help="measured of each run")
    parser.add_argument(
        "--journal", nargs="+", choices=get_args(Journal), default=get_args(Journal)
    )
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    for _, journal in product(range(given.rounds), given.journal):
        without = measure(given, journal, kills=False)
        killed = measure(given, journal, kills=True)
        share = round(killed["tokens_per_s"] / without["tokens_per_s"], 3)
        row = {"journal": journal, "share": share, "without": without, "killed": killed}
        print(json.dumps(row), flush=True)


def measure(given: argparse.Namespace, journal: Journal, *, kills: bool) -> dict[str, Any]:
    """Return the figures of one run. Raises SystemExit if no episode ended."""
    with tempfile.TemporaryDirectory() as home:
        config = configured(config_loading.load(given.config), home, journal, given.workers)
        with closing(Cluster(config)) as cluster:
            cluster.aim(None)
            run_id = begin(cluster.direct)
            with closing(open_store(cluster.direct.store_url())) as store:
                observer = RunObserver(cluster, run_id, store)
                cluster.up()
                wait_update(observer)
                before, in_vain = kept(observer), observer.tokens_in_vain()
                began = time.monotonic()
                count = wait_and_kill(cluster, given.seconds, given.every if kills else math.inf)
                elapsed_s = time.monotonic() - began
                tokens, in_vain = kept(observer) - before, observer.tokens_in_vain() - in_vain
                if not tokens:
                    raise SystemExit(f"no episode ended in {elapsed_s:.0f} s: raise --seconds")
                cluster.end()
                wrong = store.ask(lambda session: session.scalar(ACCOUNTING, {"run": run_id}))
    return {
        "tokens_per_s": round(tokens / elapsed_s, 1),
        "kills": count,
        "resampled": round(in_vain / count, 1) if count else 0.0,
        "unaccounted": wrong,
    }


def configured(config: Config, home: str, journal: Journal, workers: int) -> Config:
    replace = msgspec.structs.replace
    worker = replace(config.worker, journal=journal)
    run = replace(config.run, home=home)
    return replace(config, run=run, worker=worker, workers=workers)


def wait_update(observer: RunObserver) -> None:
    """Wait for the first update. Raises SystemExit."""
    deadline = time.monotonic() + FIRST_S
    while observer.seen is None or observer.seen.version < 1:
        if observer.cluster.exit_code() is not None or time.monotonic() > deadline:
            raise SystemExit(f"no update within {FIRST_S:g} s: {observer.cluster.last_words()}")
        time.sleep(0.5)
        observer.look()


def kept(observer: RunObserver) -> int:
    """Return the sampled tokens of the episodes that have ended."""
    found = observer.store.ask(lambda session: session.scalar(TOKENS, {"run": observer.run_id}))
    return int(found or 0)


def wait_and_kill(cluster: Cluster, seconds: float, every_s: float) -> int:
    """Kill one worker after the other, in turn; return how many."""
    began, count = time.monotonic(), 0
    while (elapsed_s := time.monotonic() - began) < seconds:
        workers = sorted(name for name in cluster.pids() if role_of(name) == "worker")
        if workers and elapsed_s >= (count + 1) * every_s:
            cluster.signal(workers[count % len(workers)], signal.SIGKILL)
            count += 1
        time.sleep(0.1)
    return count


if __name__ == "__main__":
    main()
