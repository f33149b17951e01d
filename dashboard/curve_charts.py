"""Charts of success and reward by version, which several pages draw."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.core.statistics import Estimate
from agentrl.dashboard import charts
from agentrl.dashboard.estimates import reward, success
from agentrl.dashboard.theme import Colours
from agentrl.db.queries.curves import Point

VERSION = ("version", "version")


def success_chart(points: Sequence[Point], known: Colours) -> dict[str, Any]:
    """Return the Vega-Lite chart of success by version, a line and a band per task."""
    rows = _rows(points, "success", success)
    return charts.bands(rows, VERSION, "success", ("task", known), share=True)


def reward_chart(points: Sequence[Point], known: Colours) -> dict[str, Any]:
    """Return the Vega-Lite chart of mean reward by version, like `success_chart`."""
    rows = _rows(points, "reward", reward)
    return charts.bands(rows, VERSION, "reward", ("task", known), share=False)


def _rows(
    points: Sequence[Point], name: str, estimated: Callable[[Point], Estimate]
) -> list[dict[str, Any]]:
    found = [(point, estimated(point)) for point in points]
    return [
        {"version": point.span.version, "task": point.task, name: one.mean}
        | {
            end: None if math.isnan(at) else at
            for end, at in (("low", one.low), ("high", one.high))
        }
        | {"episodes": point.episodes}
        for point, one in found
    ]
