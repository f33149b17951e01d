"""Formats figures: Markdown tables, means with their intervals."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.core.statistics import Estimate

READING = "reading.md"  # what a person makes of the figures; stands first


def reading(folder: Path) -> Iterator[str]:
    """Return the text of the folder's READING; empty if it has none."""
    path = folder / READING
    if path.exists():
        yield path.read_text("utf-8").rstrip()
        yield ""


def image(name: str, pictures: Sequence[str], folder: str) -> Iterator[str]:
    """Return Markdown for a picture of the folder, if it exists."""
    if name in pictures:
        yield f"![{name.removesuffix('.svg')}]({folder}/{name})"
        yield ""


def source(folder: str) -> Iterator[str]:
    """Return a text about the file with all figures."""
    yield f"All figures, also by task and check: [figures.json]({folder}/figures.json)."


def place(arm: str, order: Sequence[str]) -> int:
    """Return the position of an arm on a page, by `order`; unknown arms come last."""
    return order.index(arm) if arm in order else len(order)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def describe_tasks(tasks: Mapping[str, Any]) -> Iterator[str]:
    """Return the tasks of a configuration, their items, and their shares of the groups."""
    total = sum(task["weight"] for task in tasks.values())
    rows = []
    for name, task in tasks.items():
        options = ", ".join(f"{key} {value}" for key, value in task["options"].items())
        rows.append([name, options, f"{task['weight'] / total:.0%}"])
    yield from table(["task", "generated items", "share of groups"], rows)


def chance(compared: Sequence[Estimate]) -> str:
    """Return how many comparisons show a difference, and how many would by chance."""
    shown = sum(each.sign != 0 for each in compared)
    return (
        f"{shown} of {len(compared)} intervals exclude zero; if all arms were equal, about one in "
        f"twenty ({len(compared) / 20:.1f}) would do so by chance."
    )


def share(each: Estimate | None) -> str:
    """Format like 0.412 (0.31 – 0.51)."""
    if each is None:
        return "–"
    if math.isnan(each.low):
        return f"{each.mean:.3f}"
    return f"{each.mean:.3f} ({max(each.low, 0.0):.2f} – {min(each.high, 1.0):.2f})"


def difference(each: Estimate | None) -> str:
    """Format like +0.012 (−0.03 – +0.05)."""
    if each is None:
        return "–"
    if math.isnan(each.low):
        return f"{each.mean:+.3f}"
    return f"{each.mean:+.3f} ({each.low:+.3f} … {each.high:+.3f})"


def number(each: Estimate | None, digits: int = 0) -> str:
    """Format like 1,234 ± 56."""
    if each is None:
        return "–"
    text = f"{each.mean:,.{digits}f}"
    return text if math.isnan(each.low) else f"{text} ± {each.high - each.mean:,.{digits}f}"
