"""What measuring checkpoints beside a training costs the training: the same run, arms in turn.

    python benchmarks/interleaved.py [--updates 12] [--rounds 3] [--every 4] [--items 50] [--json]

none     eval.every 0: no evaluator
nice10   an evaluator at eval.nice 10, the default
nice19   at 19

Every run is `agentrl up configs/quickstart.toml` in a home of its own; an evaluator has work all
the time, as far as it gets. Reported for each arm: updates a minute after the first two, episodes
that the evaluator finished meanwhile, and, beside `none` of the same round, the share of its speed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import func, select

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from agentrl.db.models import EvaluationEpisode, Update
from agentrl.db.store import open_store

ROOT = Path(__file__).resolve().parents[1]
ARMS: Mapping[str, int | None] = {"none": None, "nice10": 10, "nice19": 19}
WARM = 2  # updates before the clock starts
MOST_S = 1800.0  # of a run


@dataclass(frozen=True, slots=True)
class Ran:
    """One run. `load`: the machine's load average at its end, which says who else computed."""

    arm: str
    updates_a_minute: float
    episodes: int
    load: float


def main() -> None:
    """Print the arms of every round, and at the end their ratios."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    asked.add_argument("--updates", type=int, default=12)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--every", type=int, default=4)
    asked.add_argument("--items", type=int, default=50)
    asked.add_argument("--json", action="store_true")
    options = asked.parse_args()
    rounds = [[run(arm, options) for arm in ARMS] for _ in range(options.rounds)]
    ratios = {
        arm: [found[n].updates_a_minute / found[0].updates_a_minute for found in rounds]
        for n, arm in enumerate(ARMS)
        if n
    }
    middle = {arm: statistics.median(values) for arm, values in ratios.items()}
    if options.json:
        runs = [[asdict(each) for each in found] for found in rounds]
        print(json.dumps({"rounds": runs, "share_of_none": ratios, "median": middle}))
        return
    for arm, values in ratios.items():
        told = ", ".join(f"{value:.2f}" for value in values)
        print(f"{arm}: {told} of the speed without; median {middle[arm]:.2f}")


def run(arm: str, options: argparse.Namespace) -> Ran:
    """Train once; raises RuntimeError with the log's end where the run fails."""
    nice = ARMS[arm]
    with tempfile.TemporaryDirectory(prefix="interleaved-") as home:
        environment = {
            "AGENTRL__RUN__HOME": home,
            "AGENTRL__RUN__STOP_UPDATES": str(options.updates),
            "AGENTRL__EVAL__EVERY": str(0 if nice is None else options.every),
            "AGENTRL__EVAL__ITEMS": str(options.items),
            "AGENTRL__EVAL__NICE": str(nice or 0),
        }
        command = [
            sys.executable,
            "-m",
            "agentrl.cli.main",
            "up",
            str(ROOT / "configs/quickstart.toml"),
        ]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_S,
        )
        if ended.returncode:
            raise RuntimeError(f"{arm}: {ended.stderr[-2000:]}")
        found = measured(arm, Path(home))
    print(
        f"{arm}: {found.updates_a_minute:.1f} updates a minute, {found.episodes} episodes measured,"
        f" load average {found.load:.0f}",
        file=sys.stderr,
    )
    return found


def measured(arm: str, home: Path) -> Ran:
    """From the rows of a run that is over."""
    with closing(open_store(f"sqlite:///{home / 'store.db'}")) as store, store.read() as session:
        times = list(session.scalars(select(Update.committed_at).order_by(Update.version)))
        clock = times[WARM:]
        last = EvaluationEpisode.ended_at <= times[-1]
        count = session.scalar(select(func.count()).select_from(EvaluationEpisode).where(last)) or 0
    pace = 60 * (len(clock) - 1) / (clock[-1] - clock[0])
    return Ran(arm, pace, count, os.getloadavg()[0])


if __name__ == "__main__":
    main()
