"""The page *Tasks*: success per task, how episodes end, unsolved items."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import streamlit as st

from agentrl.core.types import GroupState
from agentrl.dashboard import charts
from agentrl.dashboard.curve_charts import VERSION, success_chart
from agentrl.dashboard.estimates import pass_at
from agentrl.dashboard.theme import BLUE, colours
from agentrl.dashboard.viewmodels.run import EACH_POINT, read_head, task_names
from agentrl.dashboard.viewmodels.tasks import (
    ITEM_GROUPS,
    ITEMS,
    TASK_GROUPS,
    Closed,
    TaskLook,
    TasksLook,
    all_items,
    closed_groups,
    read_task,
    read_tasks,
)
from agentrl.dashboard.widgets import bars, chart, page_title, table
from agentrl.db.queries.curves import Point
from agentrl.db.queries.task_outcomes import EndCount, ItemSummary
from agentrl.db.store import Store

OF_LATE = f"Episodes of the task's last {TASK_GROUPS} complete groups."


def page(store: Store, run_id: str) -> None:
    """Show all tasks, then the chosen one, which the address keeps as `task`."""
    head = read_head(store, run_id)
    page_title(f"Tasks of {head.name}", head)
    view = read_tasks(store, run_id)
    if not view.tasks:
        st.info("No group has been admitted yet.")
        return
    curves_of_all(store, run_id, view)
    st.subheader("Groups by outcome")
    table(end_rows(view.ends), "No group has been admitted yet.", percent=["share"])
    st.caption(
        "All groups of the run. *trained*: an update learned from them. *filtered*: all episodes "
        "got the same reward, so there is nothing to learn. *stale*: sampled too many updates ago. "
        "*failed*: too few episodes survived faults of environments or processes. *cancelled*: "
        "open when the run ended."
    )
    task = _choice(view.tasks)
    one_task(store, run_id, task)


def curves_of_all(store: Store, run_id: str, view: TasksLook) -> None:
    """Show success, turns and groups without a learning signal by version.

    The first chart is sent before the rest is read, so the browser loads its chart library early.
    """
    if not view.curve:
        st.info("No update yet, or no group closed before the first one.")
        return
    known = colours([*task_names(store), *view.tasks])
    chart(
        success_chart(view.curve, known),
        f"{EACH_POINT} The band is the 95 % interval.",
    )
    left, right = st.columns(2)
    with left:
        rows = turn_rows(view.curve)
        chart(charts.lines(rows, VERSION, "turns", ("task", known), share=False), EACH_POINT)
    with right:
        spread = spread_rows(closed_groups(store, run_id))
        chart(
            charts.lines(spread, VERSION, "filtered", ("task", known), share=True),
            "Groups without a learning signal: all episodes got the same reward, or "
            f"trainer.keep_share left them out. {EACH_POINT}",
        )


def one_task(store: Store, run_id: str, task: str) -> None:
    """Show outcomes, turns, pass@k and items of one task."""
    view = read_task(store, run_id, task)
    left, middle, right = st.columns(3)
    with left:
        st.subheader("How episodes end")
        if view.ends:
            bars(statuses(view.ends), OF_LATE)
        else:
            st.info("No group of this task is complete yet.")
    with middle:
        st.subheader("Turns")
        if turns := histogram(view.ends):
            chart(charts.columns(turns, "turns", "episodes"), f"Finished episodes. {OF_LATE}")
        else:
            st.info("No episode of these groups has finished yet.")
    with right:
        st.subheader("pass@k")
        if rows := pass_rows(view, task):
            known = {task: BLUE}
            chart(
                charts.bands(rows, ("k", "k"), "pass@k", ("task", known), share=True),
                f"Probability that at least one of k episodes solves the item: unbiased estimate "
                f"from the task's last {TASK_GROUPS} groups. The band is the 95 % interval.",
            )
        else:
            st.info("No group of this task is complete yet.")
    _items(store, run_id, task, view.items)


def turn_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the mean turns of each point."""
    return [{"version": p.span.version, "task": p.task, "turns": p.turns} for p in points]


def spread_rows(closed: Closed) -> list[dict[str, Any]]:
    """Return each point's share of groups whose rewards varied too little to train on."""
    return [
        {
            "version": span.version,
            "task": task,
            "filtered": states.get(GroupState.FILTERED, 0) / sum(states.values()),
            "groups": sum(states.values()),
        }
        for span, task, states in closed
    ]


def end_rows(ends: Sequence[tuple[str, str, str, int]]) -> list[dict[str, Any]]:
    """Return a row per task and outcome, with its share of the task's groups."""
    whole: Counter[str] = Counter()
    for task, _, _, number in ends:
        whole[task] += number
    return [
        {
            "task": task,
            "state": state,
            "reason": reason,
            "groups": number,
            "share": number / whole[task],
        }
        for task, state, reason, number in ends
    ]


def statuses(ends: Sequence[EndCount]) -> Mapping[str, int]:
    """Count episodes by status, or by state and reason if they have none."""
    counts: Counter[str] = Counter()
    for each in ends:
        counts[each.status or f"{each.state} {each.reason}".strip()] += each.episodes
    return counts


def histogram(ends: Sequence[EndCount]) -> Mapping[int, int]:
    """Count finished episodes by their number of turns."""
    counts: Counter[int] = Counter()
    for each in ends:
        if each.turns is not None:
            counts[each.turns] += each.episodes
    return counts


def pass_rows(view: TaskLook, task: str) -> list[dict[str, Any]]:
    """Return pass@1, 2, 4 … up to the largest group, with intervals."""
    largest = max((n for n, _ in view.solved), default=0)
    ks = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    if largest and largest not in ks:
        ks.append(largest)
    estimates = [(k, pass_at(k, view.solved)) for k in ks]
    return [
        {"k": k, "task": task, "pass@k": one.mean, "low": one.low, "high": one.high}
        for k, one in estimates
        if one is not None
    ]


def _choice(tasks: list[str]) -> str:
    """Return the chosen task; at first that of the address."""
    name = st.query_params.get("task", "")
    place = tasks.index(name) if name in tasks else 0
    task = st.selectbox("Task", tasks, index=place) or tasks[0]
    st.query_params["task"] = task
    return task


def nothing_unsolved(items: ItemSummary) -> str:
    """Return the text for a task without an unsolved item."""
    if not items.played:
        return "No episode of these groups has finished yet."
    return "None. Each played item was solved."


def _items(store: Store, run_id: str, task: str, late: ItemSummary) -> None:
    """Show unsolved items of recent groups; on request of the whole run."""
    st.subheader("Unsolved items")
    whole = st.toggle("Whole run", help="Reads every episode of the task.")
    items = all_items(store, run_id, task) if whole else late
    table([asdict(each) for each in items.listed], nothing_unsolved(items))
    of = "every group" if whole else f"the last {ITEM_GROUPS} groups"
    st.caption(
        f"{items.unsolved} of the {items.played} items in {of} of the task are unsolved. At most "
        f"{ITEMS} are listed, most played first."
    )
