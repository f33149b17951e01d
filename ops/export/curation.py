"""`agentrl curate`: the episodes of a run that pass every rule in SQL, as chat JSONL.

finished episodes of the run ─▶ rule 1 ─▶ rule 2 ─▶ … ─▶ OUT (ops/export/episodes.py)
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.core import config_loading
from agentrl.core.errors import StoreError
from agentrl.db.admin.readonly import ask, open_history
from agentrl.db.store import Store
from agentrl.db.transitions import runs
from agentrl.db.transitions.trajectories import recordings
from agentrl.ops.export.episodes import ExportRequest, export_sft
from agentrl.ops.tables import console, one_line, plain

COLUMN = "episode_id"
SHOWN = 80  # characters of a rule in the table


@dataclass(frozen=True, slots=True)
class RuleCount:
    """What a rule did. `passed`: episodes of the run; `kept`: those that passed all until here."""

    rule: str
    passed: int
    kept: int


def curate(request: ExportRequest, rules: Sequence[str]) -> str:
    """Write a line for each episode that passes every rule, print a table of the rules, and return
    the message to print.

    A rule is a SELECT with the column `episode_id`, or the name of a file that ends in `.sql`.
    Raises StoreError if a rule is wrong or no episode passes, ConfigError.
    """
    file = config_loading.load(request.config)
    with closing(open_history(file.store_url())) as store:
        with store.read() as session:
            run_id = runs.require_run(session, request.run or file.run.name).run_id
            names = recordings.finished_episodes(session, run_id, request.task, request.min_reward)
        chosen, counts = apply_rules(store, names, rules)
    written = export_sft(replace(request, only=chosen))
    table = plain("rule", "passed", "kept")
    for each in counts:
        table.add_row(one_line(each.rule, SHOWN), str(each.passed), str(each.kept))
    console().print(table)
    return written


def apply_rules(
    store: Store, names: Sequence[str], rules: Sequence[str]
) -> tuple[frozenset[str], Sequence[RuleCount]]:
    """Return the episodes that pass every rule, and a count for each rule. Raises StoreError."""
    every = kept = frozenset(names)
    counts: list[RuleCount] = []
    for rule in rules:
        passed = every & _select(store, rule)
        kept &= passed
        counts.append(RuleCount(rule, len(passed), len(kept)))
        if not kept:
            also = " with the rules before it" if passed else ""
            short = one_line(rule, SHOWN)
            raise StoreError(
                f"rule {short!r}: none of {len(every)} finished episodes passes it{also}",
                hint="ask it with `agentrl sql CONFIG -c RULE`, and choose the run with --run",
            )
    return kept, counts


def _select(store: Store, rule: str) -> frozenset[str]:
    """Return the ids that a rule selects. Raises StoreError."""
    answer = ask(store, _read_rule(rule) if rule.endswith(".sql") else rule)
    if COLUMN not in answer.columns:
        short = one_line(rule, SHOWN)
        raise StoreError(
            f"rule {short!r} has no column {COLUMN}, only {', '.join(answer.columns)}",
            hint="write SELECT episode_id FROM …",
        )
    place = answer.columns.index(COLUMN)
    return frozenset(str(row[place]) for row in answer.rows)


def _read_rule(file: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise StoreError(f"rule {file}: {error}", hint="name a text file in UTF-8") from error
