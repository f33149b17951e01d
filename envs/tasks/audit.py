"""What a task's environment does before anything trains on it: `agentrl envs audit`.

source ─▶ splits · answers to repeated actions · rewards of expert, random and constant play
       └▶ many random episodes ─▶ times of calls, calls that hang, memory, threads and processes
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from agentrl.core.errors import (
    AgentRLError,
    EnvironmentFailure,
    ItemError,
    with_hint,
    with_origin,
)
from agentrl.envs import registry
from agentrl.envs.call_timeouts import TimeLimitedSource
from agentrl.envs.contract import Expert, Item, TaskSource
from agentrl.envs.item_choice import sample_items
from agentrl.envs.play import acts_of, play, take_turns
from agentrl.envs.server.in_process import host_sandboxes
from agentrl.envs.tasks.check import Figure, RandomCall
from agentrl.envs.tasks.random_tool_calls import RandomToolCalls
from agentrl.envs.tasks.repetition import differing_answers
from agentrl.envs.tasks.task_measurements import (
    fingerprint,
    split_figures,
    tools_of,
)

WARM_SHARE = 10  # the first tenth of the episodes fills caches and is not in the growth of memory
MOST_KIB = 50.0  # that memory may grow an episode
GIVEN_UP = 5  # failed episodes, after which no more are played
MOST_THREADS = 8  # that may be more after all episodes than before


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """`items`: played by each policy; `episodes`: played at random for times and memory.

    `call_timeout_s`: after which a call hangs. `docker`, `image`: of sandboxes, or empty.
    """

    items: int = 20
    episodes: int = 1000
    call_timeout_s: float = 60.0
    docker: str = ""
    image: str = ""


@dataclass(slots=True)
class Endurance:
    """What many episodes cost. `start_s`: until the first messages; `call_s`: of each turn."""

    start_s: list[float] = field(default_factory=list)
    call_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    kib: list[float] = field(default_factory=list)


def audit_figures(
    task: str, options: Mapping[str, Any], settings: AuditSettings
) -> Iterator[Figure]:
    """Return the figures of a task or ADAPTER:ARGUMENT, one after another.

    What cannot be measured is one row with the reason. Raises ItemError for an unknown task.
    """
    source, again = registry.source(task, options), registry.source(task, options)
    yield from _attempt("splits", _splits(source, again))
    with host_sandboxes(source, settings.docker, settings.image):
        limited = TimeLimitedSource(source, settings.call_timeout_s)
        for name, measure in (("rewards", _rewards), ("same answers", _same_answers)):
            yield from _attempt(name, measure(limited, settings))
        yield from _attempt("endurance", _endurance(limited, settings))


def _attempt(name: str, figures: Iterator[Figure]) -> Iterator[Figure]:
    try:
        yield from figures
    except Exception as error:  # whatever an environment raises is a finding
        yield Figure(name, failure_text(error), "no failure", ok=False)


def failure_text(error: Exception) -> str:
    """Return what failed; errors that are not ours with their type and where they were raised."""
    if isinstance(error, EnvironmentFailure):
        return str(error)  # its hint is about the configuration of a run
    if isinstance(error, AgentRLError):
        return with_hint(str(error), error.hint)
    return with_origin(error)


def _splits(source: TaskSource, again: TaskSource) -> Iterator[Figure]:
    """How many items, whether a second source has the same ones, and which two splits share."""
    contents = {}
    for split in source.splits:
        yield from split_figures(source, again, split)
        contents[split] = set(map(fingerprint, source.items(split)))
    for one, other in combinations(contents, 2):
        shared = len(contents[one] & contents[other])
        yield Figure(f"leak {one} into {other}", f"{shared:,}", "0", shared == 0)


def _held_out(source: TaskSource, settings: AuditSettings) -> Sequence[Item]:
    """Some items of the last split. Raises ItemError if it is empty."""
    return _some_items(source, source.splits[-1], settings.items)


def _some_items(source: TaskSource, split: str, count: int) -> Sequence[Item]:
    if not (items := source.items(split)):
        raise ItemError(f"split {split} has no items")
    return sample_items(items, count)


def _rewards(source: TaskSource, settings: AuditSettings) -> Iterator[Figure]:
    """Whether a reward can be reached, and whether it tells episodes apart."""
    items = _held_out(source, settings)
    tools = tools_of(source, items[0])
    policies: Mapping[str, Callable[[Item, int], Expert]] = {
        "expert": lambda item, seed: source.expert(item, seed=seed),
        "random": lambda _, seed: RandomToolCalls(tools, seed),
        "constant": lambda *_: RandomCall([RandomToolCalls(tools[:1], 0).act(())]),
    }
    reached: list[float] = []
    for name, policy in policies.items():
        try:
            rewards = [play(source, item, policy(item, n)).reward for n, item in enumerate(items)]
        except ItemError as error:
            missing = name == "expert"  # random and constant play need none
            yield Figure(f"reward {name}", failure_text(error), ok=None if missing else False)
            continue
        reached += rewards
        mean = sum(rewards) / len(rewards)
        text = f"{mean:.2f} ({min(rewards):.2f} to {max(rewards):.2f}, {len(rewards)} episodes)"
        yield Figure(f"reward {name}", text)
    if not reached:
        return
    spread = len(set(reached))
    best = f"{max(reached):.2f} at best, {spread} different"
    yield Figure("reachable reward", best, "> 0, different", max(reached) > 0 and spread > 1)


def _same_answers(source: TaskSource, settings: AuditSettings) -> Iterator[Figure]:
    """Whether environments made anew answer the same actions alike."""
    items = _held_out(source, settings)
    tools = tools_of(source, items[0])
    differences = differing_answers(source, items, lambda _, seed: RandomToolCalls(tools, seed))
    value = f"{len(items) - len(differences)} of {len(items)} episodes"
    value += f"; {differences[0]}" if differences else ""
    yield Figure("same answers", value, f"{len(items)}", not differences)


def _endurance(source: TaskSource, settings: AuditSettings) -> Iterator[Figure]:
    """Times of calls, calls that hang, and what many episodes leave behind."""
    items = _some_items(source, source.splits[0], settings.episodes)
    tools = tools_of(source, items[0])
    threads, processes = threading.active_count(), _child_processes()
    seen = Endurance()
    for number in range(settings.episodes):
        _play_measured(source, items[number % len(items)], RandomToolCalls(tools, number), seen)
        if len(seen.failures) >= GIVEN_UP:
            break
    for name, values in (("start", seen.start_s), ("call", seen.call_s)):
        if values:
            text = f"p50 {_ms(values, 0.5)}, p95 {_ms(values, 0.95)}, most {_ms(values, 1.0)} ms"
            yield Figure(f"time of {name}", text)
    failed = f"{len(seen.failures)} of {len(seen.kib)} episodes"
    failed += f"; {seen.failures[0]}" if seen.failures else ""
    yield Figure("calls that hang or fail", failed, "0", not seen.failures)
    yield _memory(seen.kib)
    more = threading.active_count() - threads
    yield Figure("threads left", str(max(more, 0)), f"≤ {MOST_THREADS}", more <= MOST_THREADS)
    left = len(_child_processes() - processes)
    yield Figure("processes left", str(left), "0", left == 0)


def _play_measured(source: TaskSource, item: Item, agent: Expert, seen: Endurance) -> None:
    try:
        began = time.perf_counter()
        with closing(source.make(item)) as environment:
            first = environment.start().messages
            seen.start_s.append(time.perf_counter() - began)
            began = time.perf_counter()
            for _turn in take_turns(environment, first, acts_of(agent), source.max_turns):
                seen.call_s.append(time.perf_counter() - began)
                began = time.perf_counter()
    except Exception as error:  # a worker counts any of them as a failed attempt
        seen.failures.append(f"{item.item_id}: {failure_text(error)}")
    seen.kib.append(_resident_kib())


def _memory(kib: Sequence[float]) -> Figure:
    """How this process grew once its caches were full."""
    warm = kib[len(kib) // WARM_SHARE :]
    each = (warm[-1] - warm[0]) / len(warm)
    text = f"{(warm[-1] - warm[0]) / 1024:+.1f} MiB in {len(warm)} episodes"
    return Figure("memory", text, f"≤ {MOST_KIB:g} KiB each", each <= MOST_KIB)


def _ms(seconds: Sequence[float], share: float) -> str:
    ordered = sorted(seconds)
    return f"{ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000:.1f}"


def _resident_kib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1024


def _child_processes() -> frozenset[int]:
    """Return the ids of this process's children."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # of a thread that has just ended
            found.update(map(int, file.read_text().split()))
    return frozenset(found)
