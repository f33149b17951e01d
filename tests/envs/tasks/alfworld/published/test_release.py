"""ALFWorld's own games; skipped where they are not on this machine."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import msgspec
import pytest
from textworld_comparison import Comparison, compare, pick_evenly, textworld

from agentrl.envs.contract import Item
from agentrl.envs.tasks.alfworld.playable import play_game
from agentrl.envs.tasks.alfworld.published import games


@pytest.mark.slow
def test_walkthroughs_win_all_over_the_release(release: games.Release) -> None:
    parts: Counter[str] = Counter()
    for path in pick_evenly(release.paths(), 500):
        game = release.game(path)
        play = play_game(Item("alfworld", path, msgspec.to_builtins(game.packed)))
        for command in game.walkthrough:
            assert command in play.commands, path
            play.do(command)
        assert play.won, path
        parts[path.split("/")[1]] += 1
    assert set(parts) == {"train", "valid_train", "valid_seen"}


@pytest.mark.oracles
@pytest.mark.timeout(1500)
def test_random_walks_through_the_release_equal_textworlds(
    oracles: Path, release: games.Release
) -> None:
    chosen = [release.game(path) for path in pick_evenly(release.paths(), 12)]
    found = compare(str(oracles), chosen, seed=1)
    assert found.differences == []
    assert (found.games, found.steps) == (12, 360)


@pytest.mark.oracles
def test_random_walks_through_our_own_game_equal_textworlds(
    oracles: Path, shed: games.Game
) -> None:
    found = Comparison()
    with textworld(str(oracles)) as peer:
        for seed in range(10):
            found.walk(peer, shed, Random(seed), 30)
    assert found.differences == []
    assert found.wins


@pytest.mark.oracles
def test_a_difference_is_found(oracles: Path, made: object, shed: games.Game) -> None:
    other = json.dumps(
        made(walkthrough=[]) | {"grammar": made()["grammar"].replace("Click", "Clack")}
    )  # type: ignore[operator]
    with textworld(str(oracles)) as peer:
        peer.ask(game=json.loads(other))
        assert peer.ask(do="flip lamp 1")["text"] == "Clack."
