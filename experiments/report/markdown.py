"""Formats figures: Markdown tables, means with their intervals."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.core.statistics import Estimate

Format = Callable[[Estimate | None], str]


def image(out: Path, name: str) -> Iterator[str]:
    """Return Markdown for a picture of the folder, if it exists."""
    if (out / name).exists():
        yield f"![{name.removesuffix('.svg')}]({out.name}/{name})"
        yield ""


def figures_link(out: Path, *names: str) -> str:
    links = ", ".join(f"[{name}]({out.name}/{name})" for name in names)
    return f"Every value by arm, seed and task: {links}."


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
    for name, task in tasks.items():
        options = ", ".join(f"{key} {value}" for key, value in task["options"].items())
        yield f"- {name}, {task['weight'] / total:.0%} of the groups: {options}"
    yield ""


def share(each: Estimate | None) -> str:
    """Format like 0.412 (0.31–0.51), the interval within 0…1 unless the mean is above 1."""
    if each is None:
        return "–"
    if math.isnan(each.low):
        return f"{each.mean:.3f}"
    high = min(each.high, 1.0) if each.mean <= 1.0 else each.high
    return f"{each.mean:.3f} ({max(each.low, 0.0):.2f}–{high:.2f})"


def difference(each: Estimate | None) -> str:
    """Format like +0.012 (-0.030 … +0.050)."""
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
