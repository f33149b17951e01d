"""Formats figures: Markdown tables, means with their intervals."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.core.statistics import Estimate

READING = "reading.md"  # what a person makes of the figures; stands first


def reading(folder: Path) -> Iterator[str]:
    """What stands in the folder's READING, where it has one."""
    path = folder / READING
    if path.exists():
        yield path.read_text("utf-8").rstrip()
        yield ""


def image(name: str, pictures: Sequence[str], folder: str) -> Iterator[str]:
    """A picture of the folder, where it was made."""
    if name in pictures:
        yield f"![{name.removesuffix('.svg')}]({folder}/{name})"
        yield ""


def source(folder: str) -> Iterator[str]:
    """Where the figures of the page are, and those that it leaves out."""
    yield f"All figures, also by task and check: [figures.json]({folder}/figures.json)."


def place(arm: str, order: Sequence[str]) -> int:
    """Where an arm stands on a page: as `order` says, one that it does not name at the end."""
    return order.index(arm) if arm in order else len(order)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def describe_tasks(tasks: Mapping[str, Any]) -> Iterator[str]:
    """The tasks of a configuration: what their items are, and how many of the groups are theirs."""
    total = sum(task["weight"] for task in tasks.values())
    rows = []
    for name, task in tasks.items():
        options = ", ".join(f"{key} {value}" for key, value in task["options"].items())
        rows.append([name, options, f"{task['weight'] / total:.0%}"])
    yield from table(["task", "generated items", "share of groups"], rows)


def chance(compared: Sequence[Estimate]) -> str:
    """How many comparisons show a difference, and how many would by chance."""
    shown = sum(each.sign != 0 for each in compared)
    return (
        f"{shown} of {len(compared)} intervals exclude zero; if all arms were equal, about one in "
        f"twenty ({len(compared) / 20:.1f}) would do so by chance."
    )


def share(each: Estimate | None) -> str:
    """As 0.412 (0.31 – 0.51)."""
    if each is None:
        return "–"
    if math.isnan(each.low):
        return f"{each.mean:.3f}"
    return f"{each.mean:.3f} ({max(each.low, 0.0):.2f} – {min(each.high, 1.0):.2f})"


def difference(each: Estimate | None) -> str:
    """As +0.012 (−0.03 – +0.05)."""
    if each is None:
        return "–"
    if math.isnan(each.low):
        return f"{each.mean:+.3f}"
    return f"{each.mean:+.3f} ({each.low:+.3f} … {each.high:+.3f})"


def number(each: Estimate | None, digits: int = 0) -> str:
    """As 1,234 ± 56."""
    if each is None:
        return "–"
    text = f"{each.mean:,.{digits}f}"
    return text if math.isnan(each.low) else f"{text} ± {each.high - each.mean:,.{digits}f}"
