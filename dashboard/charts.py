"""Charts that several pages draw, as Vega-Lite: plain values in, a specification out."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.dashboard.figure_labels import Figure
from agentrl.dashboard.theme import BLUE, RED, Colours, by_colour

Spec = dict[str, Any]
Row = Mapping[str, Any]

WHOLE = {"tickMinStep": 1, "format": "d"}  # an axis of whole numbers


def bands(
    rows: Sequence[Row], x: tuple[str, str], y: str, colours: tuple[str, Colours], *, share: bool
) -> Spec:
    """Draw a line with its 95 % band for each name. Rows also hold `low` and `high`.

    `x`: field and title. `colours`: the field that distinguishes lines, and its colours. `share`: y
    is a percentage from 0 to 1.
    """
    by = by_colour(*colours)
    shown: Row = {"format": ".0%" if share else ".3~g"}
    scale: Row = {"domain": [0, 1]} if share else {"zero": False}
    axis = {"type": "quantitative", "title": y, "axis": shown, "scale": scale}
    number = ".1%" if share else ".3f"
    tooltip = [
        {"field": name, "format": number} if name in (y, "low", "high") else {"field": name}
        for name in (rows[0] if rows else ())
    ]
    band = {"y": axis | {"field": "low"}, "y2": {"field": "high"}, "color": by["color"]}
    return {
        "data": {"values": [dict(row) for row in rows]},
        "height": 320,
        "encoding": {
            "x": {
                "field": x[0],
                "type": "quantitative",
                "title": x[1],
                "axis": WHOLE if x[0] == "version" else {},
            }
        },
        "layer": [
            {"mark": {"type": "area", "opacity": 0.18}, "encoding": band},
            {
                "mark": {"type": "line", "point": {"size": 45, "filled": True}},
                "encoding": {"y": axis | {"field": y}, "tooltip": tooltip, **by},
            },
        ],
    }


def lines(
    rows: Sequence[Row], x: tuple[str, str], y: str, colours: tuple[str, Colours], *, share: bool
) -> Spec:
    """Like `bands`, without intervals."""
    spec = bands(rows, x, y, colours, share=share)
    return spec | {"height": 240, "layer": spec["layer"][1:]}


def curve(rows: Sequence[Row], alarms: Sequence[Row], known: Colours, figure: Figure) -> Spec:
    """Draw a figure of updates by version: its values thin, `smooth` thick, and raised alarms.

    rows: `version`, `task`, `value`, `smooth`. alarms: `version`, `alarm`, `value`, `threshold`.
    """
    tasks = {str(row["task"]) for row in rows}
    colour = by_colour("task", {task: known.get(task, BLUE) for task in sorted(tasks)})["color"]
    shown = ".1%" if figure.share else ".4~g"
    y: Spec = {"type": "quantitative", "title": None, "scale": {"zero": figure.share}}
    if figure.share:
        y["axis"] = {"format": ".0%"}
    tooltip = [
        {"field": "version"},
        {"field": "task"},
        {"field": "value", "format": shown},
        {"field": "smooth", "format": shown, "title": "smoothed"},
    ]
    rule = {
        "data": {"values": [dict(row) for row in alarms]},
        "mark": {"type": "rule", "color": RED, "strokeDash": [4, 3], "strokeWidth": 2},
        "encoding": {
            "tooltip": [
                {"field": "alarm"},
                {"field": "version"},
                {"field": "value", "format": shown},
                {"field": "threshold", "format": shown},
            ]
        },
    }
    thin = {"type": "line", "opacity": 0.3, "strokeWidth": 1}
    thick = {"type": "line", "strokeWidth": 2.5, "point": {"size": 20, "filled": True}}
    x = {"field": "version", "type": "quantitative", "title": "version", "axis": WHOLE}
    return {
        "data": {"values": [dict(row) for row in rows]},
        "height": 260,
        "encoding": {"x": x | {"scale": {"zero": False}}},
        "layer": [
            rule,
            {"mark": thin, "encoding": {"y": y | {"field": "value"}, "color": colour}},
            {
                "mark": thick,
                "encoding": {"y": y | {"field": "smooth"}, "color": colour, "tooltip": tooltip},
            },
        ],
    }


def columns(counts: Mapping[int, int], x: str, y: str) -> Spec:
    """Draw the frequency of each integer."""
    return {
        "data": {"values": [{x: value, y: number} for value, number in sorted(counts.items())]},
        "height": 240,
        "mark": {"type": "bar", "color": BLUE},
        "encoding": {
            "x": {"field": x, "type": "ordinal", "title": x},
            "y": {"field": y, "type": "quantitative", "title": y},
            "tooltip": [{"field": x}, {"field": y}],
        },
    }


def stacked_bars(
    rows: Sequence[Row], x: tuple[str, str], y: str, parts: tuple[str, Mapping[str, str]]
) -> Spec:
    """Draw stacked bars. `x`: field and title.

    `parts`: the field with the name of a part, and the colours of its values, from the bottom up.
    """
    field, colours = parts
    order = {name: place for place, name in enumerate(colours)}
    values = [dict(row) | {"order": order[row[field]]} for row in rows]
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {
        "data": {"values": values},
        "height": 260,
        "mark": {"type": "bar"},
        "encoding": {
            "x": {"field": x[0], "type": "ordinal", "title": x[1]},
            "y": {"field": y, "type": "quantitative", "title": y},
            "color": {
                "field": field,
                "type": "nominal",
                "title": None,
                "scale": scale,
                "legend": {"orient": "top", "columns": 3, "labelLimit": 260},
            },
            "order": {"field": "order"},
            "tooltip": [{"field": x[0]}, {"field": field}, {"field": y, "format": ".3f"}],
        },
    }
