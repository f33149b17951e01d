"""The figures of `agentrl envs check alfworld`: the published games in our interpreter."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from random import Random

from agentrl.core.errors import ItemError
from agentrl.core.process import resident_bytes
from agentrl.envs.contract import Expert, Item, Message, ToolCall
from agentrl.envs.tasks import options
from agentrl.envs.tasks.alfworld import games, textworld_comparison
from agentrl.envs.tasks.alfworld.environment import ACT
from agentrl.envs.tasks.alfworld.games import Game, PackedGame
from agentrl.envs.tasks.alfworld.playable import GeneratedGame, PlayableGame, ReleaseGame, play_game
from agentrl.envs.tasks.alfworld.problem import AlfworldProblem
from agentrl.envs.tasks.check import Figure, Settings

PARTS = ("train", "valid_train", "valid_seen")
WALKS, STEPS = 200, 30
FASTER = 50
EPISODES, WARM_UP, GAMES, GROUP = 10_000, 1_000, 200, 5  # GROUP: episodes of a game in a row
GROWTH = 0.05


def figures(settings: Settings, *, warm_up: int = WARM_UP) -> Iterator[Figure]:
    """Return the rows of the check. Plays `warm_up` episodes before it measures memory."""
    try:
        release = games.release(settings.data)
        known = release.paths()
        listed = games.listed_games(settings.data)
    except ItemError as error:
        yield Figure("walkthroughs that win", str(error), "all", ok=None)
        return
    if not known:
        yield Figure("walkthroughs that win", "the release holds no game", "all", ok=None)
        return
    there = len(set(listed) & set(known))
    yield Figure("games of AgentBench's list that are here", f"{there} of {len(listed)}")
    for part in PARTS:
        paths = [path for path in known if path.split("/")[1] == part]
        chosen = textworld_comparison.pick_evenly(paths, settings.limit)
        yield _walkthroughs(part, [release.game(path) for path in chosen])
    yield from _compare_with_textworld(settings, release, known)
    yield _memory(settings, release, known, warm_up)


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy of random admissible actions and one that always looks."""
    return {"random": RandomActions(_story(item), seed), "constant": Constant()}


class RandomActions:
    """An Expert that takes random admissible actions; it plays the same game to know them."""

    def __init__(self, story: PlayableGame, seed: int) -> None:
        self._story = story
        self._random = Random(seed)

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        action = self._random.choice(list(self._story.admissible()))
        self._story.act(action)
        return ToolCall(ACT, {"action": action})


class Constant:
    """An Expert that always looks around."""

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        return ToolCall(ACT, {"action": "look"})


def _story(item: Item) -> PlayableGame:
    if "problem" in item.content:
        packed = options.read(item.item_id, PackedGame, item.content)
        return ReleaseGame(play_game(item.item_id, packed))
    return GeneratedGame(options.read(item.item_id, AlfworldProblem, item.content), "compact")


def _walkthroughs(part: str, chosen: Sequence[Game]) -> Figure:
    name = f"walkthroughs that win, {part}"
    if not chosen:
        return Figure(name, "no game of this part is here", "all", ok=None)
    broken = [f"{game.path}: {why}" for game in chosen if (why := _explain_failure(game))]
    value = f"{len(chosen) - len(broken)}/{len(chosen)}"
    named = "".join(f"; {each}" for each in broken[:5])
    return Figure(name, value + named, "all", ok=not broken)


def _explain_failure(game: Game) -> str:
    """Return why a game's walkthrough does not win it, or an empty text."""
    try:
        play = play_game(game.path, game.packed)
    except ItemError as error:
        return str(error)
    for command in game.walkthrough:
        if command not in play.commands:
            return f"{command} cannot be done"
        play.do(command)
    return "" if play.won else "not won"


def _compare_with_textworld(
    settings: Settings, release: games.Release, known: Sequence[str]
) -> Iterator[Figure]:
    """Compare our interpreter with TextWorld's over random walks."""
    walks, speed = (
        f"walks of {STEPS} steps that equal TextWorld's",
        "TextWorld's median step over ours",
    )
    due = f"≥ {FASTER}×"
    chosen = [
        release.game(path)
        for path in textworld_comparison.pick_evenly(known, settings.limit or WALKS)
    ]
    try:
        python = settings.peers.get("textworld", "")
        if not python:
            raise OSError("no peer `textworld`: a Python that has it")
        found = textworld_comparison.compare(python, chosen, seed=settings.seed, steps=STEPS)
    except OSError as error:
        yield Figure(walks, str(error), "all", ok=None)
        yield Figure(speed, str(error), due, ok=None)
        return
    wrong = {difference.split()[0] for difference in found.differences}
    told = "".join(f"; {difference[:200]}" for difference in found.differences[:3])
    value = f"{found.games - len(wrong)}/{found.games} ({found.steps} steps){told}"
    yield Figure(walks, value, "all", ok=not wrong)
    yield Figure(speed, f"{found.ratio:.0f}×", due, ok=found.ratio >= FASTER)


def _memory(
    settings: Settings, release: games.Release, known: Sequence[str], warm_up: int
) -> Figure:
    """Measure the growth of resident memory over episodes, after every game was played once."""
    name, wanted = "memory over {} episodes", f"< {GROWTH:.0%} growth"
    episodes = settings.limit or EPISODES
    if not resident_bytes():
        return Figure(name.format(episodes), "no /proc/self/statm", wanted, ok=None)
    random = Random(settings.seed)
    chosen = cycle(
        path for path in textworld_comparison.pick_evenly(known, GAMES) for _ in range(GROUP)
    )
    for path in islice(chosen, warm_up):
        _wander(release.game(path), random)
    before = resident_bytes()
    for path in islice(chosen, episodes):
        _wander(release.game(path), random)
    growth = resident_bytes() / before - 1
    value = f"{growth:+.1%} of {before >> 20} MiB"
    return Figure(name.format(episodes), value, wanted, ok=growth < GROWTH)


def _wander(game: Game, random: Random) -> None:
    """Play an episode of at most ten random steps."""
    play = play_game(game.path, game.packed)
    for _ in range(10):
        if not play.won:
            play.do(random.choice(list(play.commands)))
