"""Figures of every task: success of experts and of random play, and overlap of splits."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import combinations, product
from typing import get_args

from agentrl.core.errors import AgentRLError, ItemError, with_hint, with_origin
from agentrl.core.types import SOLVED
from agentrl.envs import registry
from agentrl.envs.contract import (
    Expert,
    Item,
    Outcome,
    TaskSource,
    Tool,
    recovery_of,
)
from agentrl.envs.item_choice import sample_items
from agentrl.envs.play import play
from agentrl.envs.server.in_process import host_sandboxes, needs_container
from agentrl.envs.tasks.check import Figure, Settings
from agentrl.envs.tasks.datasets import MissingDataset
from agentrl.envs.tasks.options import Difficulty
from agentrl.envs.tasks.random_tool_calls import RandomToolCalls
from agentrl.envs.tasks.repetition import differing_answers

EPISODES, CONTAINED_EPISODES = 200, 24  # a difficulty, where no limit is given
AT_ONCE = 4  # episodes in containers
SOLVES = 0.95  # what an expert must
REPEATED = 20  # episodes whose actions are repeated in an environment made anew
NOISE = 0.3  # of the expert that plays them, so that mistakes are repeated, too
DEFAULTS = "items of the default options"
REMADE = 20  # items of a split that are made twice
COUNTED = {"items": 300, "test_items": 100}  # of which none may be in both splits

Baselines = Callable[[Item, int], Mapping[str, Expert]]


def all_figures(task: str, settings: Settings) -> Iterator[Figure]:
    """Return figures of splits, expert and chance; none where the items are the user's own."""
    if ":" in task:
        yield from default_figures(task, settings, solves=0.0)
    elif task in registry.OF_USERS:
        yield Figure("items", f"the user's own: agentrl envs play {task} -o items=…", ok=None)
    elif _has_generated_items(task):
        yield from generated_figures(task, settings)
    else:
        yield from _attempt_figures(DEFAULTS, default_figures(task, settings, solves=SOLVES))


def generated_figures(task: str, settings: Settings) -> Iterator[Figure]:
    """The splits as they are without options; expert and chance on held-out items of each
    difficulty; what the splits share."""
    yield from _attempt_figures(DEFAULTS, _defaults(task))
    for difficulty in get_args(Difficulty):
        yield from _attempt_figures(f"expert {difficulty}", _difficulty(task, difficulty, settings))
    yield from _attempt_figures("shared by splits", _shared_items(task, settings))


def origin_figures(task: str, origin: str, settings: Settings) -> Iterator[Figure]:
    """How many items each split of a dataset has, what they share, what an expert achieves.

    Raises ItemError where the task has no such origin.
    """
    options = {"origin": origin} | ({"data": settings.data} if settings.data else {})
    source = registry.source(task, options)
    yield from _attempt_figures(f"origin {origin}", _imported_figures(source, origin, settings))


def default_figures(task: str, settings: Settings, *, solves: float) -> Iterator[Figure]:
    """The splits of the default options; whether a second source draws the same; what they share;
    what an expert, who must solve so many, and chance achieve."""
    source, again = registry.source(task, {}), registry.source(task, {})
    for split in source.splits:
        yield from _attempt_figures(f"items {split}", split_figures(source, again, split))
    yield from _attempt_figures("shared by splits", _shared_by_default(source))
    last = source.splits[-1]
    if not (items := sample_items(source.items(last), _few(source, settings))):
        return
    with host_sandboxes(source, settings.docker, settings.image):
        yield from _attempt_figures("expert", _expert_figure(source, items, last, solves))
        tools = tools_of(source, items[0])
        played = _play_items(source, items, lambda _, seed: RandomToolCalls(tools, seed))
        yield Figure(f"random {last}", _played_text(played))
        yield _repetition(source, items, last, lambda _, seed: RandomToolCalls(tools, seed))


def split_figures(source: TaskSource, again: TaskSource, split: str) -> Iterator[Figure]:
    """How many items a split has, whether each has its own id, and a second source the same."""
    items = source.items(split)
    yield Figure(f"items {split}", f"{len(items):,}", "> 0", bool(items))
    ids = {item.item_id for item in items}
    yield Figure(f"ids {split}", f"{len(ids):,}", f"{len(items):,}", len(ids) == len(items))
    others = again.items(split)
    same = sum(one == other for one, other in zip(items, others, strict=False))
    equal = same == len(items) == len(others)
    yield Figure(f"same items {split}", f"{same:,}", f"{len(items):,}", equal)


def tools_of(source: TaskSource, item: Item) -> tuple[Tool, ...]:
    """Return the tools of an item's episode. Raises EnvironmentFailure, ItemError."""
    with closing(source.make(item)) as environment:
        environment.start()
        return environment.tools


def fingerprint(item: Item) -> str:
    """Hash an item's content, without its name."""
    text = json.dumps(item.content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _attempt_figures(name: str, figures: Iterator[Figure]) -> Iterator[Figure]:
    """Yield rows, and one with the reason if the rest cannot be measured."""
    try:
        yield from figures
    except AgentRLError as error:
        yield Figure(name, _error_text(error), ok=None)
    except Exception as error:  # whatever a user's environment raises is a finding
        yield Figure(name, with_origin(error), "no failure", ok=False)


def _has_generated_items(task: str) -> bool:
    """Return whether the source takes the options of generated items."""
    try:
        registry.source(task, {"difficulty": "easy", "seed": 0, **COUNTED})
    except ItemError:
        return task in registry.TASKS
    return True


def _defaults(task: str) -> Iterator[Figure]:
    """Check that the splits can be made without options."""
    source = registry.source(task, {})
    try:
        counts = {split: len(source.items(split)) for split in source.splits}
    except MissingDataset:
        raise
    except ItemError as error:
        yield Figure(DEFAULTS, _error_text(error), "every split", ok=False)
        return
    told = ", ".join(f"{split}: {count:,}" for split, count in counts.items())
    yield Figure(DEFAULTS, told, "every split", ok=all(counts.values()))
    few = dict.fromkeys(COUNTED, REMADE)
    one, again = registry.source(task, few), registry.source(task, few)
    same = [split for split in one.splits if one.items(split) == again.items(split)]
    yield Figure("same items again", ", ".join(same), ", ".join(one.splits), same == [*one.splits])


def _difficulty(task: str, difficulty: str, settings: Settings) -> Iterator[Figure]:
    options = {"difficulty": difficulty, "seed": settings.seed}
    few = _few(registry.source(task, options), settings)
    source = registry.source(task, options | {"items": few, "test_items": few})
    try:
        items = source.items("test")
    except ItemError as error:
        yield Figure(f"expert {difficulty}", str(error), f"{few} items", ok=False)
        return
    with host_sandboxes(source, settings.docker, settings.image):
        yield from _expert_figure(source, items, difficulty, SOLVES)
        yield _repetition(
            source,
            items,
            difficulty,
            lambda item, seed: source.expert(item, seed=seed, noise=NOISE),
        )
        yield from _chance(source, items, difficulty)


def _chance(source: TaskSource, items: Sequence[Item], difficulty: str) -> Iterator[Figure]:
    """Measure policies that know nothing, to compare with the expert."""
    baselines = getattr(registry.beside(source.name, "check"), "baselines", None)
    if baselines is None:
        yield Figure(f"random {difficulty}", f"{source.name} has no baselines", ok=None)
        return
    for name in baselines(items[0], 0):
        agent = partial(_baseline, baselines, name)
        yield Figure(f"{name} {difficulty}", _played_text(_play_items(source, items, agent)))


def _baseline(baselines: Baselines, name: str, item: Item, seed: int) -> Expert:
    return baselines(item, seed)[name]


def _shared_items(task: str, settings: Settings) -> Iterator[Figure]:
    """Count items that train and test share, over every difficulty and two seeds."""
    found: dict[str, set[str]] = {"train": set(), "test": set()}
    counts = {name: settings.limit or count for name, count in COUNTED.items()}
    for difficulty, seed in product(get_args(Difficulty), (settings.seed, settings.seed + 1)):
        source = registry.source(task, {"difficulty": difficulty, "seed": seed, **counts})
        for split, contents in found.items():
            contents.update(map(fingerprint, source.items(split)))
    yield _overlap(found, {})


def _shared_by_default(source: TaskSource) -> Iterator[Figure]:
    found = {split: set(map(fingerprint, source.items(split))) for split in source.splits}
    if len(found) > 1:
        yield _overlap(found, {})


def _imported_figures(source: TaskSource, origin: str, settings: Settings) -> Iterator[Figure]:
    published = getattr(registry.beside(source.name, "check"), "SHARED", {}).get(origin, {})
    found: dict[str, set[str]] = {}
    absent: dict[str, MissingDataset] = {}
    with host_sandboxes(source, settings.docker, settings.image):
        for split in source.splits:
            try:
                items = source.items(split)
            except MissingDataset as error:
                absent[split] = error
                continue
            found[split] = set(map(fingerprint, items))
            yield Figure(f"items {split}", f"{len(items):,}", "> 0", bool(items))
            if some := sample_items(items, _few(source, settings)):
                yield from _attempt_figures(
                    f"expert {split}", _expert_figure(source, some, split, 0.0)
                )
    if not found:
        raise next(iter(absent.values()))
    for split, reason in absent.items():
        yield Figure(f"items {split}", _error_text(reason), ok=None)
    if len(found) > 1:
        yield _overlap(found, published)


def _expert_figure(
    source: TaskSource, items: Sequence[Item], where: str, solves: float
) -> Iterator[Figure]:
    """`solves`: the share of items that the expert must solve; 0: nothing is wanted of it."""
    played = _play_items(source, items, lambda item, seed: source.expert(item, seed=seed))
    wanted = f"≥ {solves:.0%}" if solves else ""
    yield Figure(f"expert {where}", _played_text(played), wanted, _share(played) >= solves)


def _overlap(found: Mapping[str, set[str]], published: Mapping[str, int]) -> Figure:
    """`published`: how many each pair of splits shares as the data is published."""
    pairs = {f"{a} and {b}": len(found[a] & found[b]) for a, b in combinations(found, 2)}
    shared = {pair: count for pair, count in pairs.items() if count}
    contents = sum(map(len, found.values()))
    known = ", as published" if shared and shared == published else ""
    value = f"{_pairs(shared)} of {contents:,} contents{known}"
    return Figure("shared by splits", value, _pairs(published), shared == published)


def _error_text(error: AgentRLError) -> str:
    return with_hint(str(error), error.hint)


def _pairs(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{pair}: {count}" for pair, count in counts.items()) or "0"


def _few(source: TaskSource, settings: Settings) -> int:
    return settings.limit or (CONTAINED_EPISODES if needs_container(source) else EPISODES)


def _play_items(
    source: TaskSource, items: Sequence[Item], agent: Callable[[Item, int], Expert]
) -> list[Outcome]:
    """Play one episode of each item, with its place as the seed."""

    def one(seed: int) -> Outcome:
        return play(source, items[seed], agent(items[seed], seed))

    with ThreadPoolExecutor(AT_ONCE if needs_container(source) else 1) as threads:
        return list(threads.map(one, range(len(items))))


def _repetition(
    source: TaskSource, items: Sequence[Item], where: str, agent: Callable[[Item, int], Expert]
) -> Figure:
    """Whether environments made anew answer recorded actions alike, where the source says so."""
    name, recovery = f"recovery {where}", recovery_of(source)
    if recovery != "replayable":
        return Figure(name, recovery)
    some = items[:REPEATED]
    differences = differing_answers(source, some, agent)
    value = f"{len(some) - len(differences)} of {len(some)} episodes repeat"
    if differences:
        value += f"; {differences[0]}"
    return Figure(name, value, recovery, not differences)


def _share(played: Sequence[Outcome]) -> float:
    return sum(each.done and each.score >= SOLVED for each in played) / len(played)


def _played_text(played: Sequence[Outcome]) -> str:
    solved = round(_share(played) * len(played))
    mean = sum(each.reward for each in played) / len(played)
    return f"{_share(played):.1%} ({solved}/{len(played)}), reward {mean:.2f}"
