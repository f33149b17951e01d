"""What the dispatcher, the trainer, the dashboard and SQL ask of a long run's store: milliseconds.

    python benchmarks/store.py --store URL [--groups 125000] [--steps 10] [--repeats 5]
                               [--only WHO…]

Fills an empty database with one run (`helpers/long_run_rows.py`; 125,000 groups of 8 episodes and
10 steps each are a million episodes and ten million steps) and asks each question `--repeats`
times; a run that is there already is asked as it stands. `admission` is the dispatcher's whole
transaction with nothing free, with one batch free, and with items that retire. The shortest and the
median: on a busy machine the shortest says what a question costs. `nothing` is SELECT 1.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from helpers.long_run_rows import BATCH, MEMBERS, RUN, TASKS, Size, fill, leave
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.config.sections.tasks import Task
from agentrl.core.types import Status
from agentrl.dashboard.viewmodels import accounting, compare, run, tasks
from agentrl.dashboard.viewmodels.run import (
    DELAY_UPDATES,
    LATE_GROUPS,
    LEASES,
    POINT_GROUPS,
    POINTS,
    UPDATES,
    WINDOW_S,
)
from agentrl.dashboard.viewmodels.tasks import ITEM_GROUPS, ITEMS, TASK_GROUPS
from agentrl.db.admin import migrate
from agentrl.db.admin.readonly import open_history
from agentrl.db.audit.accounting import VIEWS
from agentrl.db.models.runs import Run
from agentrl.db.queries import (
    balance,
    curves,
    delays,
    episode_outcomes,
    progress,
    task_outcomes,
)
from agentrl.db.queries.episodes.detail import episode_detail
from agentrl.db.queries.episodes.filter import EpisodeFilter, Order
from agentrl.db.queries.episodes.search import SearchLimits, SearchResult, search, tasks_of
from agentrl.db.registry import checkpoints, leases, lineage
from agentrl.db.store import Store, open_store
from agentrl.db.transitions import (
    alarms,
    due_episodes,
    groups,
    item_streams,
    lifecycle,
    runs,
    updates,
)
from agentrl.envs.contract import Item
from agentrl.ops.processes.dispatcher import dispatcher_config
from agentrl.workers.dispatch.dispatcher import Dispatcher
from agentrl.workers.dispatch.item_stream import ItemStream

Question = Callable[[Session], Any]
ADMISSION, LOOKERS = "admission", ("dashboard", "search", "checkpoints", "report", "view")


def sought(session: Session, passes: EpisodeFilter) -> SearchResult:
    """The newest page of the run's episodes that pass."""
    return search(session, RUN, passes)


# What a page reads before it is drawn.
PAGES: dict[str, Callable[[Store], object]] = {
    "Run, each 3 s": lambda store: (run.read_now(store, RUN), run.read_flow(store, RUN)),
    "Run, each 30 s": lambda store: run.read_curve(store, RUN),
    "Tasks": lambda store: (
        tasks.read_tasks(store, RUN),
        tasks.closed_groups(store, RUN),
        tasks.read_task(store, RUN, "task0"),
    ),
    "Compare, a run": lambda store: compare.read_side(store, RUN),
    "Accounting": lambda store: accounting.read_accounting(store, RUN),
}


def whole_view(session: Session, name: str) -> object:
    return session.execute(text("SELECT * FROM " + name)).all()  # noqa: S608


QUESTIONS: dict[str, dict[str, Question]] = {
    "dispatcher": {
        "expired": lambda s: due_episodes.expired_attempts(s, RUN),
        "bodies_overdue": lambda s: due_episodes.bodies_overdue(s, RUN),
        "open_groups": lambda s: groups.open_groups(s, RUN),
        "positions_to_repeat": lambda s: item_streams.positions_to_repeat(s, RUN),
        "recent_success": lambda s: item_streams.recent_success(s, RUN, "task0", 32),
        "due_to_send": lambda s: due_episodes.due_to_send(s, RUN, claim_timeout_s=30),
    },
    "trainer": {
        "ready_members": lambda s: updates.ready_members(s, RUN, limit=4 * BATCH),
        "forks": lambda s: updates.forks(s, RUN),
        "hours": lambda s: progress.hours(s, RUN),
        "recent_groups": lambda s: progress.recent_groups(s, RUN, 10),
        "groups_since_update": lambda s: alarms.groups_since_update(s, RUN),
        "first_metrics": lambda s: episode_outcomes.first_metrics(s, RUN, 10),
        "staleness": lambda s: progress.staleness(s, RUN),
    },
    "worker": {
        "live_policies": lambda s: checkpoints.live_policies(s, RUN),
        "recent_episodes": lambda s: episode_outcomes.recent_episodes(s, RUN, "task0", 64),
        "recent_metrics": lambda s: episode_outcomes.recent_metrics(s, RUN, 16),
    },
    "dashboard": {
        "run_names": runs.run_names,
        "configured_tasks": runs.configured_tasks,
        "learned": lambda s: progress.learned_totals(s, RUN),
        "pace": lambda s: delays.recent_pace(s, RUN, WINDOW_S),
        "success_by_version": lambda s: curves.success_by_version(s, RUN, POINTS, POINT_GROUPS),
        "closed_by_version": lambda s: curves.closed_groups_by_version(
            s, RUN, POINTS, POINT_GROUPS
        ),
        "latest": lambda s: curves.recent_points(s, RUN),
        "delays": lambda s: delays.delays(s, RUN, DELAY_UPDATES),
        "waiting": lambda s: delays.waiting_counts(s, RUN),
        "leases": lambda s: leases.leases(s, RUN, LEASES),
        "idle_s": lambda s: leases.idle_s(s, RUN),
        "latest_updates": lambda s: lifecycle.latest_updates(s, RUN, UPDATES),
        "policy_mix": lambda s: progress.policy_mix(s, RUN, LATE_GROUPS),
        "raised": lambda s: alarms.raised_alarms(s, RUN),
        "group_ends": lambda s: task_outcomes.group_ends(s, RUN),
        "ends": lambda s: task_outcomes.end_counts(s, RUN, "task0", TASK_GROUPS),
        "solved_among": lambda s: task_outcomes.solved_among(s, RUN, "task0", TASK_GROUPS),
        "never_solved": lambda s: task_outcomes.unsolved_items(s, RUN, "task0", ITEM_GROUPS, ITEMS),
        "never_solved, whole": lambda s: task_outcomes.unsolved_items(s, RUN, "task0", None, ITEMS),
        "disagreements": lambda s: progress.disagreements(s, RUN, LATE_GROUPS),
        "balance": lambda s: balance.balance(s, RUN),
        "groups_by_state": lambda s: progress.groups_by_state(s, RUN),
        "given_up": lambda s: balance.failed_counts(s, RUN),
        "refused": lambda s: balance.refused_counts(s, RUN),
    },
    "search": {
        "tasks_of": lambda s: tasks_of(s, RUN),
        "newest": lambda s: sought(s, EpisodeFilter()),
        "the most tokens": lambda s: sought(s, EpisodeFilter(order=Order.TOKENS)),
        "the longest": lambda s: sought(s, EpisodeFilter(order=Order.SECONDS)),
        "a reward": lambda s: sought(s, EpisodeFilter(reward_from=0.5)),
        "a status nobody has": lambda s: search(s, RUN, EpisodeFilter(status=Status.TASK_LIMIT)),
        "a text nobody said": lambda s: sought(s, EpisodeFilter(words="unicorn")),
        "an item": lambda s: sought(s, EpisodeFilter(item_id="item-17")),
        "a checkpoint that acted": lambda s: search(s, RUN, EpisodeFilter(checkpoint="long-v2000")),
        "an item that a checkpoint acted in": lambda s: sought(
            s, EpisodeFilter(item_id="item-17", checkpoint="long-v2000")
        ),
        "a checkpoint, among the newest": lambda s: search(
            s, RUN, EpisodeFilter(checkpoint="long-v2000"), limits=SearchLimits(few=0)
        ),
        "learned by an update": lambda s: sought(s, EpisodeFilter(learned_at=2000)),
        "one episode": lambda s: episode_detail(s, RUN, "long-task0-20000-3"),
    },
    "checkpoints": {
        "nodes": lambda s: lineage.lineage_nodes(s, RUN),
        "newest": lambda s: lineage.newest_checkpoints(s, RUN, 100),
        "servings": lambda s: lineage.servings(s, RUN, 200),
    },
    "report": {
        "summaries": lifecycle.summaries,
        "totals": lambda s: progress.totals(s, RUN),
        "recent_success": lambda s: progress.recent_success(s, RUN),
    },
    "view": {name: partial(whole_view, name=name) for name in VIEWS},
}


def timed(name: str, work: Callable[[], object], repeats: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of a call: the shortest and the median of so many; printed."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append(1000 * (time.perf_counter() - began))
    return told(name, found)


def told(name: str, milliseconds: Sequence[float]) -> dict[str, tuple[float, float]]:
    shortest, median = min(milliseconds), statistics.median(milliseconds)
    print(f"{name:40} {shortest:10.1f} ms, median {median:10.1f}", flush=True)
    return {name: (round(shortest, 1), round(median, 1))}


def admission(store: Store, repeats: int) -> dict[str, tuple[float, float]]:
    """The dispatcher's tick: its first, nothing free, a batch free; fixed or retiring."""
    found: dict[str, tuple[float, float]] = {}
    for name, retire_at in (("fixed", None), ("retiring", 0.95)):
        config = configured(retire_at)
        items = {
            task: ItemStream([Item(task, f"item-{n}", {}) for n in range(5_000)], 0)
            for task in config.tasks
        }
        dispatcher = Dispatcher(dispatcher_config(config), RUN, store, items)

        def tick(dispatcher: Dispatcher = dispatcher) -> None:
            dispatcher.tick(lambda _command: None)

        found |= timed(f"tick, {name}, first", tick, 1)
        found |= timed(f"tick, {name}, sends what is due", tick, 1)
        found |= timed(f"tick, {name}, nothing free", tick, repeats)
        times = []
        for _ in range(repeats):
            leave(store, BATCH)
            began = time.perf_counter()
            tick()
            times.append(1000 * (time.perf_counter() - began))
            tick()  # sends the rest
        found |= told(f"tick, {name}, a batch free", times)
        stopped = threading.Event()
        stopped.set()
        dispatcher.serve(lambda _command: None, stopped)  # gives its lease back
    return found


def configured(retire_at: float | None) -> Config:
    """As many groups open at once as five batches."""
    plan = Dispatch(groups_per_update=BATCH, group_size=MEMBERS, retire_at=retire_at)
    return Config(tasks={f"task{n}": Task() for n in range(TASKS)}, dispatch=plan, policy=[])


def ask_all(
    store: Store, looking: Store, repeats: int, only: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """Every question of QUESTIONS, and the dashboard's pages, in transactions of their own.

    `looking`: the store as the dashboard and `agentrl sql` open it. `only`: of those who are named.
    """

    def nothing(session: Session) -> None:
        session.scalar(text("SELECT 1"))

    found = timed("nothing", lambda: store.ask(nothing), repeats)
    for who in [each for each in only or QUESTIONS if each != ADMISSION]:
        questions = QUESTIONS[who]
        for name, question in questions.items():
            asked = looking if who in LOOKERS else store

            def ask(asked: Store = asked, question: Question = question) -> None:
                with asked.read() as session:
                    question(session)

            found |= timed(f"{who}: {name}", ask, 1 if who == "view" else repeats)
        if who == "dashboard":
            for page, look in PAGES.items():
                found |= timed(f"page: {page}", partial(look, looking), repeats)
    return found


def main() -> None:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--groups", type=int, default=125_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=[ADMISSION, *QUESTIONS], default=[])
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    with closing(open_store(given.store)) as store:
        migrate.upgrade(store)
        if RUN not in {name for name in stored(store)}:
            size = Size(given.groups, given.steps)
            figures["fill_s"] = round(fill(store, size), 1)
        admits = not given.only or ADMISSION in given.only
        figures["ms"] = admission(store, given.repeats) if admits else {}
        with closing(open_history(given.store)) as looking:
            figures["ms"] |= ask_all(store, looking, given.repeats, given.only)
    print(json.dumps(figures))


def stored(store: Store) -> list[str]:
    """The runs that are there."""
    with store.read() as session:
        return [run.name for run in session.scalars(select(Run))]


if __name__ == "__main__":
    main()
