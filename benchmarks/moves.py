"""Processor time that a worker's two transactions for each episode take: its claim and its finish.

    python benchmarks/moves.py --store POSTGRES [--groups 40] [--json]

One thread, groups of eight, every member claimed and then finished; milliseconds of this process
for one, the database's own not counted. The same file measures an older commit where PYTHONPATH
names its `src`.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

sys.path.append(os.environ.get("PYTHONPATH") or str(Path(__file__).resolve().parent.parent / "src"))

from instant import begin
from sqlalchemy.orm import Session

from agentrl.core.types import Status
from agentrl.db.admin import migrate
from agentrl.db.models import Run, Worker
from agentrl.db.store import Store, open_store
from agentrl.db.transitions import episodes, groups, runs
from agentrl.db.transitions.episodes import ClaimedEpisode, EpisodeResult

SIZE = 8
RESULT = EpisodeResult(Status.COMPLETED, 1.0, 1.0, 5, 100, 50, "a" * 64)
LONG_S = 3600.0


def admitted(store: Store, run_id: str, count: int) -> list[str]:
    """Ids of the members of so many groups, all queued, and a worker of the run's name."""
    names = [f"{run_id}-{number}" for number in range(count)]
    new = [groups.NewGroup(name, "instant", n, 0, "item-0", SIZE) for n, name in enumerate(names)]

    def work(session: Session) -> None:
        worker = Worker(worker_id=run_id, run_id=run_id, host="here", pid=os.getpid())
        runs.register_worker(session, worker, lease_s=LONG_S)
        groups.admit_groups(session, session.get_one(Run, run_id), new)

    store.transact(work)
    return [f"{name}-{member}" for name in names for member in range(SIZE)]


def claim(store: Store, run_id: str, episode_id: str) -> ClaimedEpisode:
    claimed = store.transact(
        lambda session: episodes.claim(session, episode_id, 1, run_id, deadline_s=LONG_S)
    )
    if claimed is None:
        raise SystemExit(f"{episode_id} was not claimed")
    return claimed


def finish(store: Store, claimed: ClaimedEpisode) -> None:
    if not store.transact(
        lambda session: episodes.finish(session, claimed, RESULT, body_timeout_s=LONG_S)
    ):
        raise SystemExit(f"{claimed.episode_id} was not finished")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--groups", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, closing(open_store(given.store)) as store:
        migrate.upgrade(store)
        run_id = begin(store, Path(home))
        first, *ids = admitted(store, run_id, given.groups)
        finish(store, claim(store, run_id, first))  # statements are compiled once
        began = time.process_time()
        claimed = [claim(store, run_id, episode_id) for episode_id in ids]
        between = time.process_time()
        for each in claimed:
            finish(store, each)
        ended = time.process_time()
    found = {
        "claim_ms": round(1000 * (between - began) / len(ids), 3),
        "finish_ms": round(1000 * (ended - between) / len(ids), 3),
    }
    print(json.dumps(found) if given.json else found)


if __name__ == "__main__":
    main()
