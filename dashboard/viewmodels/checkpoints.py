"""What the page *Checkpoints* shows: the lineage, who serves what, how each was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.core.types import CheckpointState
from agentrl.dashboard.links import Here
from agentrl.dashboard.markup import Cell, Link
from agentrl.dashboard.theme import by_colour, colours
from agentrl.dashboard.viewmodels.episodes import moment
from agentrl.db.registry import lineage
from agentrl.db.registry.lineage import CheckpointEntry, LineageNode, Measurement, ServingPeriod
from agentrl.db.store import Store

PAGE = "Checkpoints"
NEWEST = 100  # rows of the registry
SERVINGS = 200  # periods of serving
EVALUATIONS = 200  # rows of evaluations
GREY = "#8C8C8C"  # legible on white and on black
FILES = {
    CheckpointState.LIVE: "present",
    CheckpointState.ROLLED_BACK: "present",
    CheckpointState.DELETED: "removed",
    CheckpointState.EXTERNAL: "external",
}


@dataclass(frozen=True, slots=True)
class Registry:
    """The checkpoints of a run at one time."""

    origin: tuple[str, int] | None
    states: Mapping[str, int]
    nodes: Sequence[LineageNode]
    newest: Sequence[CheckpointEntry]
    servings: Sequence[ServingPeriod]
    measured: Sequence[Measurement]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive checkpoints without a fork between them. `depth`: number of forks before."""

    depth: int
    first: LineageNode
    last: LineageNode
    number: int
    present: int


def read_registry(store: Store, run_id: str) -> Registry:
    """Read the current registry."""
    with store.read() as session:
        return Registry(
            origin=lineage.fork_origin(session, run_id),
            states=lineage.checkpoint_states(session, run_id),
            nodes=lineage.lineage_nodes(session, run_id),
            newest=lineage.newest_checkpoints(session, run_id, NEWEST),
            servings=lineage.servings(session, run_id, SERVINGS),
            measured=lineage.measurements(session, run_id, EVALUATIONS),
        )


def read_checkpoint(store: Store, run_id: str, checkpoint_id: str) -> CheckpointEntry | None:
    """Read a checkpoint of the run."""
    with store.read() as session:
        return lineage.checkpoint_entry(session, run_id, checkpoint_id)


def segments(nodes: Sequence[LineageNode]) -> list[Segment]:
    """Split the tree into segments without a fork, parents first.

    nodes: parents before their children. A node whose parent is missing is a root.
    """
    children: dict[str | None, list[LineageNode]] = {}
    known = {node.checkpoint_id for node in nodes}
    for node in nodes:
        parent = node.parent_id if node.parent_id in known else None
        children.setdefault(parent, []).append(node)
    found: list[Segment] = []
    waiting = [(node, 0) for node in reversed(children.get(None, []))]
    while waiting:
        first, depth = waiting.pop()
        last, number, present = first, 1, int(first.present)
        while len(after := children.get(last.checkpoint_id, [])) == 1 and _same(last, after[0]):
            last, number, present = after[0], number + 1, present + after[0].present
        found.append(Segment(depth, first, last, number, present))
        after = sorted(after, key=lambda node: not node.undone)  # what stands comes last
        waiting += [(node, depth + 1) for node in reversed(after)]
    return found


def _same(node: LineageNode, after: LineageNode) -> bool:
    return node.undone == after.undone


def tree(registry: Registry) -> str:
    """Return the segments as lines of text, indented by their forks."""
    lines = []
    if registry.origin is not None:
        name, version = registry.origin
        lines.append(f"{name} v{version}" if version >= 0 else f"{name} (gone)")
    latest = max((node.version for node in registry.nodes if not node.undone), default=None)
    for segment in segments(registry.nodes):
        deep = segment.depth + bool(registry.origin)
        branch = "   " * (deep - 1) + "└─ " if deep else ""
        lines.append(branch + _segment_text(segment, latest))
    return "\n".join(lines)


def _segment_text(segment: Segment, latest: int | None) -> str:
    first, last = segment.first, segment.last
    versions = f"v{first.version}" if first is last else f"v{first.version} … v{last.version}"
    state = "rolled back" if first.undone else "part of the run"
    newest = "  ◀ newest" if not last.undone and last.version == latest else ""
    files = f"{segment.present} of {segment.number} checkpoints have files"
    return f"{versions}  {state} · {files}{newest}"


def rows(
    entries: Sequence[CheckpointEntry], registry: Registry, here: Here
) -> list[dict[str, Cell]]:
    """Return the rows of the registry, with links to the checkpoints."""
    serves: dict[str, list[str]] = {}
    for each in registry.servings:
        if each.live:
            serves.setdefault(each.checkpoint_id, []).append(f"{each.server} ({each.track})")
    return [
        {
            "version": entry.version,
            "checkpoint": Link(
                here.short(entry.checkpoint_id), here.to(PAGE, checkpoint=entry.checkpoint_id)
            ),
            "created, UTC": moment(entry.created_at),
            "state": entry.state.value.replace("_", " "),
            "files": FILES[entry.state],
            "snapshot": "yes" if entry.snapshot else "–",
            "update": entry.update_state.replace("_", " ") or "–",
            "episodes": entry.episodes,
            "served by": ", ".join(serves.get(entry.checkpoint_id, [])) or "–",
        }
        for entry in entries
    ]


def serving_chart(served: Sequence[ServingPeriod], here: Here) -> dict[str, Any]:
    """Return the Vega-Lite chart of served versions over time, a row per server and track.

    A track that pins a checkpoint of the run is named without the run's name.
    """
    values = [
        {
            "who": f"{each.server} · {each.track.replace(f'{here.run_id}-', '')}",
            "version": each.version,
            "from": each.from_min,
            "until": each.until_min,
            "checkpoint": each.checkpoint_id,
        }
        for each in served
    ]
    return {
        "data": {"values": values},
        "height": {"step": 34},
        "mark": {"type": "bar", "cornerRadius": 2, "height": 20},
        "encoding": {
            "y": {"field": "who", "type": "nominal", "title": None, "axis": {"labelLimit": 260}},
            "x": {
                "field": "from",
                "type": "quantitative",
                "title": "minutes since the start of the run",
            },
            "x2": {"field": "until"},
            "color": {
                "field": "version",
                "type": "quantitative",
                "scale": {"scheme": "viridis"},
                "legend": {"tickMinStep": 1, "format": "d"},
            },
            "tooltip": [
                {"field": "checkpoint"},
                {"field": "version"},
                {"field": "from", "format": ".1f"},
                {"field": "until", "format": ".1f"},
            ],
        },
    }


def evaluation_chart(measured: Sequence[Measurement]) -> dict[str, Any]:
    """Return the Vega-Lite chart of success by version with intervals, per task and decoding.

    Evaluations that are not complete are left out.
    """
    values = [
        {
            "task": each.task,
            "version": each.version,
            "how": f"{each.split}, temperature {each.temperature:g}",
            "success": each.success,
            "low": each.low,
            "high": each.high,
        }
        for each in measured
        if each.version is not None and each.is_complete
    ]
    channels = by_colour("task", colours(each.task for each in measured))
    percent = {"format": ".0%"}
    x = {"field": "version", "type": "ordinal", "title": "version", "axis": {"labelAngle": 0}}
    beside = {"field": "task", "type": "nominal"}  # tasks with the same figure hide each other else
    grey = {"symbolFillColor": GREY, "symbolStrokeColor": GREY}
    y = {"type": "quantitative", "title": "success", "axis": percent, "scale": {"domain": [0, 1]}}
    interval = {"y": y | {"field": "low"}, "y2": {"field": "high"}}
    return {
        "data": {"values": values},
        "height": 280,
        "encoding": {"x": x, "xOffset": beside, "color": channels["color"]},
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": interval},
            {
                "mark": {"type": "point", "filled": True, "size": 70},
                "encoding": {
                    "y": y | {"field": "success"},
                    "shape": {"field": "how", "type": "nominal", "title": None, "legend": grey},
                    "tooltip": [{"field": name} for name in ("task", "how", "version", "success")],
                },
            },
        ],
    }


def evaluation_rows(measured: Sequence[Measurement]) -> list[dict[str, Cell]]:
    """Return the rows of the evaluations."""
    return [
        {
            "version": "–" if each.version is None else f"v{each.version}",
            "checkpoint": each.checkpoint_id,
            "task": each.task,
            "split": each.split,
            "temperature": each.temperature,
            "items": each.items,
            "repeats": each.repeats,
            "episodes": _count_text(each),
            "success": each.success,
            "95 %": f"{each.low:.1%} – {each.high:.1%}",
        }
        for each in measured
    ]


def _count_text(measured: Measurement) -> str:
    if measured.is_complete:
        return str(measured.episodes)
    return f"{measured.episodes} of {measured.planned}"
