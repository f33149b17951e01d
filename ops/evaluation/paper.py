"""`agentrl eval CONFIG --paper`: the benchmarks as the paper measures them, beside its own row.

A configuration that differs from the protocol is refused. The paper is arXiv:2510.04206.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.core.config.config import Config
from agentrl.core.errors import AgentRLError, ConfigError, with_hint
from agentrl.ops.evaluation.evaluate import Plan, PlanResult
from agentrl.ops.evaluation.target import Target
from agentrl.ops.tables import console, plain

EXAMPLE = "docs/examples/paper.toml"
GREEDY = 0.0


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a benchmark is measured.

    `items`: of each split. `percent`: success of the paper's 14B policy; None: not in its table.
    `options`: of the task, which must have these values; None stands for the default.
    """

    splits: Sequence[str]
    items: int
    max_turns: int
    percent: float | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: {"origin": "agentbench"})


PROTOCOLS: Mapping[str, Protocol] = {
    "alfworld": Protocol(("standard",), 109, 20, 91.5),
    "dbbench": Protocol(("standard",), 300, 15, 72.2),
    "kg": Protocol(("standard",), 150, 15, 72.8, {"origin": "agentbench", "rules": "strict"}),
    "os": Protocol(("standard",), 144, 8, 43.6),
    "webshop": Protocol(
        ("test",), 200, 20, 58.5, {"origin": "agentbench", "goals": "human", "attributes": False}
    ),
    "bfcl": Protocol(
        ("base", "miss_func", "miss_param", "long_context"), 200, 60, options={"origin": "v4"}
    ),
}
_DEFAULTS = {"style": "full", "rules": "strict", "goals": "human", "attributes": False}


def make_plans(
    config: Config, tasks: Sequence[str], items: int | None, temperature: float | None, repeats: int
) -> list[Plan]:
    """Return the plans of the protocol; without a temperature greedy ones.

    Raises ConfigError for a configuration that differs from it.
    """
    chosen = [task for task in tasks or config.tasks if task in PROTOCOLS]
    differences = [text for task in chosen for text in _differences(config, task)]
    differences += [f"{task} is no benchmark of the paper" for task in tasks if task not in chosen]
    if differences or not chosen:
        known = ", ".join(PROTOCOLS)
        raise ConfigError(
            "--paper: " + ("; ".join(differences) or f"the configuration has none of {known}"),
            hint=f"compare with {EXAMPLE}",
        )
    return [
        Plan(
            task,
            split,
            GREEDY if temperature is None else temperature,
            items or 10**9,
            repeats,
        )
        for task in chosen
        for split in PROTOCOLS[task].splits
    ]


def _differences(config: Config, task: str) -> Iterator[str]:
    protocol, found = PROTOCOLS[task], config.tasks[task]
    if found.source:
        yield f"tasks.{task}.source is {found.source}, not the task itself"
    if found.max_turns not in (None, protocol.max_turns):
        yield f"tasks.{task}.max_turns is {found.max_turns}, not {protocol.max_turns}"
    for name, wanted in ({"style": "full"} | dict(protocol.options)).items():
        value = found.options.get(name) or _DEFAULTS.get(name, "generated")
        if value != wanted:
            yield f"tasks.{task}.options.{name} is {value}, not {wanted}"


def describe(
    rows: Sequence[Mapping[str, Any]], absent: Mapping[Plan, AgentRLError]
) -> list[Mapping[str, Any]]:
    """Return the JSON objects of results with the paper's row, and one for each absent split."""
    missing = [
        {"task": plan.task, "split": plan.split, "missing": with_hint(str(error), error.hint)}
        for plan, error in absent.items()
    ]
    return [
        {
            **row,
            "paper_percent": PROTOCOLS[row["task"]].percent,
            "paper_items": PROTOCOLS[row["task"]].items,
        }
        for row in (*rows, *missing)
    ]


def show(results: Sequence[tuple[Target, PlanResult]], absent: Mapping[Plan, AgentRLError]) -> None:
    """Print a row for each split: ours, the paper's, and what was not measured."""
    table = plain(
        "policy", "task", "split", "turns", "items", "success", "95 % interval", "score",
        "paper, 14B", "decoding", "",
    )  # fmt: skip
    for target, one in results:
        protocol, plan = PROTOCOLS[one.plan.task], one.plan
        failed = f"{one.failed} failed, in no rate" if one.failed else ""
        table.add_row(
            target.name or target.checkpoint_id,
            plan.task,
            plan.split,
            str(protocol.max_turns),
            f"{one.items}" + ("" if one.items == protocol.items else f" of {protocol.items}"),
            f"{one.success:.1%}",
            f"{one.low:.1%} – {one.high:.1%}",
            f"{one.score:.1%}",
            _percent(protocol),
            f"T = {plan.temperature:g}" if plan.temperature else "greedy",
            failed,
        )
    for plan, error in absent.items():
        protocol = PROTOCOLS[plan.task]
        cells = ["", plan.task, plan.split, str(protocol.max_turns), f"0 of {protocol.items}"]
        reason = with_hint(str(error), error.hint)
        table.add_row(*cells, "–", "", "", _percent(protocol), "", f"not measured: {reason}")
    console().print(table)


def _percent(protocol: Protocol) -> str:
    return "–" if protocol.percent is None else f"{protocol.percent:.1f}%"
