"""Colours: one for each task on every page, told apart by colour-blind people, on light and dark.

Okabe and Ito's palette (jfly.uni-koeln.de/color), black replaced by grey, the faintest last. Charts
say with a shape as well what they say with a colour.
"""

from collections.abc import Iterable, Mapping
from typing import Any

BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, GREY, YELLOW = "#E69F00", "#56B4E9", "#999999", "#F0E442"
RED = "#D00000"  # of alarms, which are dashed too
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY, YELLOW)
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke", "wedge")

Colours = Mapping[str, str]


def colours(names: Iterable[str]) -> Colours:
    """Return a colour for each name, by position; the ninth repeats the first."""
    ordered = sorted(set(names))
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(ordered)}


def by_colour(field: str, known: Colours) -> dict[str, Any]:
    """Return Vega-Lite's channels `color` and `shape` of a nominal field, equal on every page."""
    names = list(known)
    shapes = [SHAPES[place % len(SHAPES)] for place in range(len(names))]
    channel = {
        "field": field,
        "type": "nominal",
        "title": None,
        "legend": {"orient": "top", "symbolOpacity": 1},
    }
    return {
        "color": channel | {"scale": {"domain": names, "range": list(known.values())}},
        "shape": channel | {"scale": {"domain": names, "range": shapes}},
    }
