"""Compares our interpreter with TextWorld: the same random walks, step by step."""

import json
import select
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Any, cast

from agentrl.envs.tasks.alfworld.published.game import Play, read_setting
from agentrl.envs.tasks.alfworld.published.games import Game

PEER = Path(__file__).parent / "textworld_peer.py"
GAMES_A_PROCESS = 25  # TextWorld leaks megabytes a load
PATIENCE_S = 300.0  # for one answer of TextWorld's
NONSENSE = 0.05  # probability of a command that cannot be done


class TextWorld:
    """TextWorld in a process of its own. `patience_s`: seconds to wait for one answer."""

    def __init__(self, python: str, *, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._process = subprocess.Popen(
            [python, str(PEER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._to = cast(IO[str], self._process.stdin)
        self._from = cast(IO[str], self._process.stdout)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request. Raises OSError if the process is gone, silent or answers another one."""
        self._to.write(json.dumps(request) + "\n")
        self._to.flush()
        if not select.select([self._from], [], [], self._patience_s)[0]:
            raise OSError(f"TextWorld did not answer in {self._patience_s:g} s")
        answer = self._from.readline()
        if not answer:
            raise OSError("TextWorld's process ended")
        try:
            found: dict[str, Any] = json.loads(answer)
        except ValueError as error:
            raise OSError(f"TextWorld's process answered {answer[:80]!r}") from error
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def textworld(python: str) -> Iterator[TextWorld]:
    """Start TextWorld with that Python. Raises OSError if it does not exist."""
    peer = TextWorld(python)
    try:
        yield peer
    finally:
        peer.close()


@dataclass
class Comparison:
    """Walks over both. `differences`: by game and step. `ours`, `theirs`: seconds a step."""

    games: int = 0
    steps: int = 0
    wins: int = 0
    differences: list[str] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Return their median step over ours."""
        return statistics.median(self.theirs) / statistics.median(self.ours)

    def walk(self, peer: TextWorld, game: Game, random: Random, steps: int) -> None:
        """Do one random walk; every other game starts with a part of its walkthrough."""
        theirs = peer.ask(game=game.embedded())
        play = Play(read_setting(*game.packed.texts()))
        self._note(f"{game.path} start", play.intro(), play, theirs)
        led = list(game.walkthrough) if random.random() < 0.5 else []
        led = led[: random.randint(0, len(led))]
        for step in range(1, steps + 1):
            command = led.pop(0) if led else random.choice(list(play.commands))
            if random.random() < NONSENSE:
                command = f"{command} now"
            began = time.perf_counter()
            told = play.do(command)
            self.ours.append(time.perf_counter() - began)
            theirs = peer.ask(do=command)
            self.theirs.append(theirs["seconds"])
            self._note(f"{game.path} step {step}, {command}", told, play, theirs)
        self.games += 1
        self.steps += steps
        self.wins += play.won

    def _note(self, where: str, told: str, play: Play, theirs: Mapping[str, Any]) -> None:
        ours: dict[str, Any] = {"text": told, "commands": sorted(play.commands)}
        ours |= {"reward": int(play.won), "done": play.won}
        for name, value in ours.items():
            if value != theirs[name]:
                self.differences.append(f"{where}: {name}: {value!r} is {theirs[name]!r}")


def compare(python: str, games: Sequence[Game], *, seed: int, steps: int = 30) -> Comparison:
    """Do a random walk of so many steps through each game.

    Raises OSError where TextWorld cannot be run.
    """
    found = Comparison()
    for start in range(0, len(games), GAMES_A_PROCESS):
        with textworld(python) as peer:
            for game in games[start : start + GAMES_A_PROCESS]:
                found.walk(peer, game, Random(f"{seed} {game.path}"), steps)
    return found


def pick_evenly(known: Sequence[str], count: int) -> list[str]:
    """Pick so many paths, spread evenly over all of them; 0 picks all."""
    if not count or count >= len(known):
        return list(known)
    return [known[place * len(known) // count] for place in range(count)]
