"""`agentrl eval compare`: compares two policies on the items that both were evaluated on.

names ─▶ complete evaluations of each ─▶ those alike in task, split, settings, … ─▶ a paired test
"""

import dataclasses
import json
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from sqlalchemy.orm import Session

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError, nearest
from agentrl.core.types import SOLVED
from agentrl.db.admin.readonly import open_history
from agentrl.db.models.evaluations import Evaluation
from agentrl.db.transitions import evaluations
from agentrl.ops.evaluation.evaluation_rows import hash_evaluation
from agentrl.ops.evaluation.paired_comparison import PairedResult, compare_items
from agentrl.ops.evaluation.target import Target, find, resolve
from agentrl.ops.tables import console, plain

SHOWN = 5  # items that changed, of each direction, in the table


@dataclass(frozen=True, slots=True)
class PairRequest:
    """What to compare: B with A. No task, no split: all that both were evaluated on."""

    first: str
    second: str
    tasks: Sequence[str] = ()
    splits: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """One comparison, by success of each item over its repeats."""

    task: str
    split: str
    temperature: float
    compared: PairedResult


def compare(path: Path, pair: PairRequest, *, as_json: bool) -> None:
    """Print the comparison. Raises ConfigError without common evaluations, StoreError."""
    config = config_loading.load(path)
    # Hashing takes longer than the database lets a transaction idle.
    directories = [name for name in (pair.first, pair.second) if Path(name).is_dir()]
    targets = {name: resolve(name, config) for name in directories}
    with closing(open_history(config.store_url())) as store, store.read() as session:
        firsts, seconds = (
            _of_present_weights(
                _read_evaluations(session, name, config, store.url), targets.get(name), config
            )
            for name in (pair.first, pair.second)
        )
        _check_tasks(pair, {*config.tasks, *(row.task for row in [*firsts, *seconds])})
        found = _findings(session, pair, firsts, seconds)
        comparisons = sorted(found, key=lambda one: (one.task, one.split, one.temperature))
    if not comparisons:
        raise _nothing_in_common(path, pair, firsts, seconds)
    if as_json:
        print(json.dumps([_flat(one) for one in comparisons]))
    else:
        show(pair, comparisons)


def _check_tasks(pair: PairRequest, known: Collection[str]) -> None:
    for task in pair.tasks:
        if task not in known:
            raise ConfigError(
                f"neither the configuration nor an evaluation has a task {task}"
                f"{nearest(task, known)}"
            )


def _nothing_in_common(
    path: Path, pair: PairRequest, firsts: Sequence[Evaluation], seconds: Sequence[Evaluation]
) -> ConfigError:
    """Return an error that says what is missing, and which command measures it."""
    lines = [f"{pair.first} and {pair.second} have no complete evaluations with items in common"]
    command = f"{config_loading.command('eval', path)} {_measuring(pair)}"
    rows = {
        row.evaluation_id: row for row in [*_unfinished(pair, firsts), *_unfinished(pair, seconds)]
    }
    if not rows:
        chosen = f" --tasks {','.join(pair.tasks)}" if pair.tasks else ""
        chosen += f" --splits {','.join(pair.splits)}" if pair.splits else ""
        return ConfigError(lines[0], hint=f"run `{command}{chosen}`")
    for row in rows.values():
        where = f"{row.task} {row.split} at temperature {row.temperature:g}"
        ended = f"{row.episodes} of {row.planned} episodes have ended"
        lines.append(f"of {row.policy} on {where}, {ended}")
    return ConfigError(
        "; ".join(lines),
        hint=f"run `{command} {_finishing(list(rows.values()))}`; with --again and fewer items it "
        "begins anew",
    )


def _finishing(rows: Sequence[Evaluation]) -> str:
    """Return the options of `agentrl eval` that finish all of the first one's temperature."""
    temperature = rows[0].temperature
    alike = [row for row in rows if row.temperature == temperature]
    tasks = ",".join(sorted({row.task for row in alike}))
    splits = ",".join(sorted({row.split for row in alike}))
    items, repeats = max(row.items for row in alike), max(row.repeats for row in alike)
    where = f"--tasks {tasks} --splits {splits} --temperature {temperature:g}"
    return f"{where} --items {items} --repeats {repeats}"


def _measuring(pair: PairRequest) -> str:
    """Return the options of `agentrl eval` that evaluate both."""
    names = (pair.first, pair.second)
    options = [f"--policy '{name}'" for name in names if not _of_this_run(name)]
    if own := [name for name in names if _of_this_run(name)]:
        options.append(f"--checkpoints {','.join(own)}")
    return " ".join(options)


def _of_this_run(name: str) -> bool:
    """Return whether a name is a version of the run, known elsewhere as RUN@VERSION."""
    return name == "latest" or name.isdecimal()


def _findings(
    session: Session, pair: PairRequest, firsts: Sequence[Evaluation], seconds: Sequence[Evaluation]
) -> Iterator[PlanComparison]:
    """Compare; of several equal evaluations the newest counts."""
    before = {_alike(row): row for row in firsts if row.is_complete}
    after = {_alike(row): row for row in seconds if row.is_complete}
    for key in before.keys() & after.keys():
        first, second = before[key], after[key]
        if not _is_chosen(pair, first):
            continue
        compared = compare_items(_success(session, first), _success(session, second))
        if compared is not None:
            yield PlanComparison(first.task, first.split, first.temperature, compared)


def _is_chosen(pair: PairRequest, row: Evaluation) -> bool:
    is_chosen = not pair.tasks or row.task in pair.tasks
    return is_chosen and (not pair.splits or row.split in pair.splits)


def _unfinished(pair: PairRequest, rows: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the newest of equal evaluations, where none is complete."""
    complete = {_alike(row) for row in rows if row.is_complete}
    newest = {_alike(row): row for row in rows if _is_chosen(pair, row)}
    return [row for key, row in newest.items() if key not in complete]


def _read_evaluations(session: Session, name: str, config: Config, where: str) -> list[Evaluation]:
    """Return all evaluations of a policy, by its name or as a checkpoint."""
    if rows := evaluations.evaluations_of_policy(session, name):
        return rows
    full = f"{config.run.name}@{name}" if _of_this_run(name) else name
    if rows := evaluations.evaluations_of_policy(session, full):
        return rows
    if "/" in full or "(" in full:
        return []
    return evaluations.evaluations_of_policy(session, find(session, full, where)[0].checkpoint_id)


def _of_present_weights(
    rows: list[Evaluation], target: Target | None, config: Config
) -> list[Evaluation]:
    """Return, of a directory, the evaluations of the weights it has now; all if there are none.

    `target`: the directory; None: the rows are of no directory.
    """
    if target is None:
        return rows
    present = [
        row
        for row in rows
        if row.evaluation_id
        == hash_evaluation(config, target, (row.task, row.split, row.temperature), row.settings)
    ]
    return present or rows


def _alike(row: Evaluation) -> tuple[str, str, float, str]:
    return row.task, row.split, row.temperature, row.settings


def _success(session: Session, row: Evaluation) -> dict[str, float]:
    """Return {item: share of solved episodes}."""
    wins: dict[str, list[float]] = {}
    for episode in evaluations.evaluation_episodes(session, row.evaluation_id):
        wins.setdefault(episode.item_id, []).append(float(episode.score >= SOLVED))
    return {item: fmean(won) for item, won in wins.items()}


def _flat(one: PlanComparison) -> dict[str, object]:
    """Return a JSON object; NaN becomes null."""
    row = dataclasses.asdict(one)
    row |= row.pop("compared")
    bounds = row.pop("difference")
    row |= {"difference": bounds["mean"], "low": bounds["low"], "high": bounds["high"]}
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


def show(pair: PairRequest, comparisons: Sequence[PlanComparison]) -> None:
    """Print the table and the changed items."""
    heads = ["B − A", "95 % interval", "p", "items", "gained", "lost"]
    table = plain("task", "split", "temperature", "A", "B", *heads)
    for one in comparisons:
        by = one.compared
        table.add_row(
            one.task,
            one.split,
            f"{one.temperature:g}",
            f"{by.first:.1%}",
            f"{by.second:.1%}",
            f"{by.difference.mean:+.1%}",
            by.difference.interval_text("+.1%"),
            f"{by.p:.3g}",
            str(by.items),
            str(len(by.gained)),
            str(len(by.lost)),
        )
    out = console()
    out.print(f"A: {pair.first}   B: {pair.second}")
    out.print(table)
    for one in comparisons:
        for word, items in (("gained", one.compared.gained), ("lost", one.compared.lost)):
            if items:
                more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
                where = f"{one.task} {one.split} at temperature {one.temperature:g}"
                out.print(f"{where}, {word}: {', '.join(items[:SHOWN])}{more}")
