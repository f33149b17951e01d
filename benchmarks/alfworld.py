"""A step of our ALFWorld interpreter against TextWorld's, over the same random walks, in one run.

    python benchmarks/alfworld.py --textworld PYTHON [--data DIR] [--games N]

PYTHON has textworld and fast-downward-textworld (`make .venv-oracles/.done`). Steps alternate,
each timed in its own process without the pipe between them; the walks are compared as well.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import textworld_comparison

from agentrl.envs.tasks.alfworld.published import games
from agentrl.envs.tasks.alfworld.published.game import Play, Setting, read_setting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--textworld", required=True, metavar="PYTHON")
    parser.add_argument("--data", default="", help="default: AGENTRL_DATA")
    parser.add_argument("--games", type=int, default=20)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    release = games.release(args.data)
    chosen = [
        release.game(path) for path in textworld_comparison.pick_evenly(release.paths(), args.games)
    ]
    found = textworld_comparison.compare(args.textworld, chosen, seed=args.seed, steps=args.steps)
    figures = {
        "games": found.games,
        "steps": found.steps,
        "differences": len(found.differences),
        "ours_step_p50_ms": statistics.median(found.ours) * 1e3,
        "textworld_step_p50_ms": statistics.median(found.theirs) * 1e3,
        "ratio": found.ratio,
        "ours_load_p50_ms": statistics.median(map(load, chosen)) * 1e3,
    }
    print(json.dumps(figures))


def load(game: games.Game) -> float:
    """Seconds from a game's packed texts to its first observation, the game not cached.

    The domain, which all games share, is: as in any process that plays more than one.
    """
    read_setting.cache_clear()
    began = time.perf_counter()
    found: Setting = read_setting(*game.packed.texts())
    Play(found).intro()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
