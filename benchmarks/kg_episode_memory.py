"""Memory of the knowledge graph task: over many episodes, and of each that is open.

python benchmarks/kg_episode_memory.py [episodes]
"""

import sys
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from agentrl.envs.play import play
from agentrl.envs.tasks.kg.task_source import KgSource

ITEMS, OPEN = 200, 500


def main(episodes: int) -> None:
    source = KgSource({"items": ITEMS, "difficulty": "hard"})
    items = source.items("train")
    for number in range(episodes):
        item = items[number % ITEMS]
        play(source, item, source.expert(item, seed=number))
        if number + 1 in (episodes // 10, episodes):
            print(f"{number + 1:,} episodes: {resident_mb():.1f} MB")
    before = resident_mb()
    opened = [source.make(items[number % ITEMS]) for number in range(OPEN)]
    print(f"an open episode: {(resident_mb() - before) / len(opened) * 1024:.0f} KiB")


def resident_mb() -> float:
    return float(psutil.Process().memory_info().rss / 2**20)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
