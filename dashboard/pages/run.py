"""The page *Run*: progress, speed, delays, processes and updates. It only reads."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import streamlit as st

from agentrl.core.types import EpisodeState, GroupState, UpdateState
from agentrl.dashboard import charts
from agentrl.dashboard.curve_charts import reward_chart, success_chart
from agentrl.dashboard.estimates import duration, left_s, reward, success
from agentrl.dashboard.figure_labels import figure_of
from agentrl.dashboard.markup import Row
from agentrl.dashboard.theme import BLUE, ORANGE, PURPLE, SKY, VERMILION, colours
from agentrl.dashboard.viewmodels.run import (
    EACH_POINT,
    LATE_GROUPS,
    RECENT,
    Flow,
    Now,
    read_curve,
    read_flow,
    read_head,
    read_now,
    task_names,
)
from agentrl.dashboard.widgets import bars, chart, figures, live_part, page_title, plain_text, table
from agentrl.db.models.updates import Update
from agentrl.db.queries.curves import Point
from agentrl.db.queries.delays import Delay
from agentrl.db.registry.leases import Lease
from agentrl.db.store import Store
from agentrl.db.transitions.alarms import RaisedAlarm

NO_POLICY = "No policy is live. Episodes wait for one."
CURVE_EVERY_S = 30.0  # it reads more than the rest, and changes less
METRICS = (
    "loss",
    "entropy",
    "grad_norm",
    "clip_fraction",
    "mismatch_k3",
    "effective_sample_size",
)  # of the table; the page Training has all
PARTS = {
    "queued_s": ("generation: waiting for a worker", ORANGE),
    "playing_s": ("generation: running", BLUE),
    "siblings_s": ("queue: waiting for the group", SKY),
    "ready_s": ("queue: waiting for the trainer", PURPLE),
    "update_s": ("trainer: update", VERMILION),
}


def page(store: Store, run_id: str) -> None:
    """Refresh every three seconds while the run is active, the curves every thirty seconds."""
    over = read_head(store, run_id).over
    live_part(lambda: top(read_now(store, run_id)), over=over)
    live_part(lambda: learning(store, run_id), over=over, every_s=CURVE_EVERY_S)
    live_part(lambda: under_way(read_flow(store, run_id)), over=over)


def top(view: Now) -> None:
    """Show state, figures, alarms, processes and recent success."""
    page_title(view.head.name, view.head)
    _figures(view)
    for each in view.outages:
        st.warning(plain_text(str(each)))
    _alarms(view.alarms, over=view.head.over)
    st.markdown(health(view))
    st.subheader("Recent success and reward by task")
    table(recent_rows(view.recent), "No group has closed yet.", percent=["success"])
    st.caption(f"{RECENT} The 95 % intervals count episodes of an item as alike.")


def learning(store: Store, run_id: str) -> None:
    """Show success and reward by version."""
    points = read_curve(store, run_id)
    if not points:
        return
    known = colours([*task_names(store), *(point.task for point in points)])
    left, right = st.columns(2)
    with left:
        chart(success_chart(points, known), f"{EACH_POINT} The band is the 95 % interval.")
    with right:
        caption = f"{EACH_POINT} Mean reward with its 95 % interval."
        chart(reward_chart(points, known), caption)


def under_way(view: Flow) -> None:
    """Show queues, delays, live policies and updates."""
    left, right = st.columns(2)
    with left:
        st.subheader("In progress")
        bars(
            queues(view),
            "Episodes that are queued or running, finished episodes that are not trained yet, and "
            "groups that wait for members or for the trainer.",
        )
    with right:
        st.subheader("Steps by policy")
        if view.mix:
            bars(
                view.mix,
                f"Which policy sampled the steps of the last {LATE_GROUPS} closed groups: the "
                f"newest one (*current*), or an older one on purpose. {staleness(view)}",
            )
        else:
            st.info("No step is recorded yet.")
    _delays(view.delays)
    st.subheader("Live policies")
    nothing = "The run is over. No policy is served." if view.over else NO_POLICY
    table([asdict(policy) for policy in view.policies], nothing)
    st.subheader("Updates")
    table(update_rows(view.updates), "No update yet.")


def recent_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return a row per task, with intervals."""
    return [
        {
            "task": p.task,
            "success": rate.mean,
            "success, 95 %": rate.interval_text(".1%"),
            "reward": round(mean.mean, 3),
            "reward, 95 %": mean.interval_text(".3f"),
            "turns": round(p.turns, 1),
            "sampled tokens": round(p.loss_tokens),
            "episodes": p.episodes,
        }
        for p in points
        for rate, mean in [(success(p), reward(p))]
    ]


def staleness(view: Flow) -> str:
    """Return a sentence about the age of the steps in the last update; empty: there are none."""
    names = {"fresh": "of *current*", "lagged": "of the others"}
    shares = " and ".join(
        f"{view.staleness[kind]:.1f} {'updates ' if not place else ''}old for steps {name}"
        for place, (kind, name) in enumerate(names.items())
        if kind in view.staleness
    )
    return f"In the last update they were on average {shares}." if shares else ""


def queues(view: Flow) -> dict[str, int]:
    """Return the numbers of unfinished and waiting episodes and groups, for a chart."""
    episodes, groups = view.waiting.episodes, view.waiting.groups
    return {
        "episodes queued": episodes.get(EpisodeState.QUEUED, 0),
        "episodes running": episodes.get(EpisodeState.RUNNING, 0),
        "episodes finished, not trained": episodes.get(EpisodeState.FINISHED, 0),
        "groups open": groups.get(GroupState.OPEN, 0),
        "groups ready": groups.get(GroupState.READY, 0),
    }


def health(view: Now) -> str:
    """Return one line about the processes of the run."""
    if view.head.over:
        return f"Processes: the run is over; {_count(view.leases, 'live')} still run."
    held = {lease.role for lease in view.leases}
    texts = [_of_role(view.leases, role) for role in ("dispatcher", "worker", "policy server")]
    texts += [_of_role(view.leases, role) for role in ("trainer", "recorder") if role in held]
    texts += [f"{role} active {duration(idle)} ago" for role, idle in view.idle.items()]
    return "Processes: " + " · ".join(texts)


def update_rows(updates: Sequence[Update]) -> list[dict[str, Any]]:
    """Return the rows of the updates, with the metrics that any of them has.

    Their seconds are from the batch's arrival to the commit.
    """
    shown = [name for name in METRICS if any(name in row.metrics for row in updates)]
    return [
        {
            "version": row.version,
            "state": row.state,
            "groups": row.groups,
            "episodes": row.episodes,
            "trained tokens": row.loss_tokens if row.state == UpdateState.COMMITTED else 0,
            "seconds": round(row.committed_at - row.started_at, 2),
            **{figure_of(name).title: row.metrics.get(name) for name in shown},
        }
        for row in updates
    ]


def delay_rows(found: Sequence[Delay]) -> list[dict[str, Any]]:
    """Return a row per update and part of its episodes' time."""
    return [
        {"version": each.version, "part": name, "seconds": getattr(each, field)}
        for each in found
        for field, (name, _) in PARTS.items()
    ]


def _figures(view: Now) -> None:
    pace = view.pace
    seconds = max(pace.seconds, 1e-9)
    left = "–" if view.head.over else duration(left_s(view.rules))
    figures(
        {
            "Version": f"{view.version}",
            "Updates": f"{view.learned.updates:,}",
            "Trained episodes": f"{view.learned.episodes:,}",
            "Trained tokens": f"{view.learned.trained_tokens:,}",
            "Episodes/s": f"{pace.episodes / seconds:.2f}",
            "Sampled tokens/s": f"{pace.loss_tokens / seconds:,.0f}",
            "Duration": duration(view.seconds),
            "Time left": left,
        },
        {
            "Episodes/s": f"Finished episodes in the last {pace.seconds:.0f} s, or before the end.",
            "Trained episodes": "Episodes that updates learned from, without updates "
            "that were rolled back or skipped.",
            "Trained tokens": "Tokens that policies sampled in these episodes.",
            "Sampled tokens/s": "Tokens that policies sampled in the episodes of Episodes/s, "
            "trained on or not.",
            "Time left": "Until the first stop rule of the configuration, at the recent speed.",
        },
    )
    for rule in view.rules:
        text = f"Stops by {rule.name}: {rule.reached}, {duration(rule.left_s)} left"
        st.progress(min(1.0, max(0.0, rule.share)), text=text)


def _alarms(raised: Sequence[RaisedAlarm], *, over: bool) -> None:
    """Show the alarms that are raised, or were raised when the run ended."""
    if not raised:
        return
    number = "1 alarm" if len(raised) == 1 else f"{len(raised)} alarms"
    stand = "raised when the run ended" if over else f"{'is' if len(raised) == 1 else 'are'} raised"
    st.warning(
        f"{number} {stand}. docs/alarms.md says what to do; the page Training has their history."
    )
    rows: list[Row] = [
        {
            "alarm": each.name,
            "task": each.task or "all",
            "value": each.value,
            "threshold": each.threshold,
            "since version": each.version,
            "minutes": round(each.since_s / 60, 1),
        }
        for each in raised
    ]
    table(rows, "")


def _delays(found: Sequence[Delay]) -> None:
    st.subheader("Where time goes")
    if not found:
        st.info("No update of an episode that this run has played.")
        return
    last = found[-1]
    figures(
        {
            "Generation": duration(last.queued_s + last.playing_s),
            "Queue": duration(last.siblings_s + last.ready_s),
            "Trainer": duration(last.update_s),
        },
        {"Generation": f"Mean over the episodes of the update to version {last.version}."},
    )
    parts = dict(PARTS.values())
    spec = charts.stacked_bars(
        delay_rows(found), ("version", "version"), "seconds", ("part", parts)
    )
    chart(spec, "Mean seconds per episode, for the episodes of each recent update.")


def _of_role(held: Sequence[Lease], role: str) -> str:
    """Return a text such as `worker: 2 live, 1 lost`."""
    states = Counter(lease.state for lease in held if lease.role == role)
    counts = ", ".join(f"{states[state]} {state}" for state in ("live", "lost") if states[state])
    return f"{role}: {counts or 'none live'}"


def _count(held: Sequence[Lease], state: str) -> int:
    return sum(lease.state == state for lease in held)
