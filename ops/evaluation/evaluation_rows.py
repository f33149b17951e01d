"""The rows of an evaluation: each episode is stored when it ends and is not played twice.

The id of an evaluation is a hash of everything that decides its episodes: policy and chat format,
task, split, temperature, options, limits, seed, and the way in which items are chosen. Their number
and repeats are not part of it, so more of them extend an evaluation.
"""

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import External
from agentrl.core.config.sections.tasks import Envs
from agentrl.core.telemetry import metrics
from agentrl.core.types import Status
from agentrl.db.models.evaluations import Evaluation, EvaluationEpisode
from agentrl.db.store import Store
from agentrl.db.transitions import evaluations
from agentrl.envs import registry
from agentrl.envs.item_choice import ITEM_CHOICE
from agentrl.envs.server.in_process import needs_container
from agentrl.ops.evaluation.evaluate import (
    EpisodePlayer,
    EpisodeScore,
    Plan,
    PlanResult,
    Work,
)
from agentrl.ops.evaluation.summary import summarise
from agentrl.ops.evaluation.target import Target
from agentrl.workers.conversation.template import read_template

SUM_UP_S = 5.0  # between two looks at all episodes so far, for the row's figures
MILLION = 1e6


class EvaluationRecord:
    """One target's evaluations, a plan each. Raises StoreError where the store stays away."""

    def __init__(
        self, store: Store, config: Config, target: Target, work: Mapping[Plan, Sequence[Work]]
    ) -> None:
        """Begin, or find as it was left."""
        self._store = store
        self._prices = target.external.external if target.external else External()
        self._work = work
        self._names = {plan: evaluation_id(config, target, plan) for plan in work}
        self._failed = dict.fromkeys(work, 0)
        self._planned: dict[Plan, int] = {}
        self._summed = time.monotonic()
        self._todo: list[Work] = []
        for plan, every in work.items():
            row = _row(config, target, plan, self._names[plan])
            requested = {each.key for each in every}
            done, self._planned[plan] = store.transact(
                partial(evaluations.begin_evaluation, row=row, requested_items=requested)
            )
            self._todo += [each for each in every if each.key not in done]

    def todo(self) -> list[Work]:
        """What was not measured when the record was opened."""
        return self._todo

    def fill(self, player: EpisodePlayer, tick: Callable[[int], None]) -> None:
        """Play what is to do, keep it and sum up, however it ends.

        `tick` is told how many episodes are there more.
        """
        try:
            for ended in player.play(self._todo):
                self.add(ended)
                for work, played in ended:
                    status = str(played.status) if played else "failed"
                    metrics.MEASURED.labels(task=work.plan.task, status=status).inc()
                tick(len(ended))
        finally:
            self.sum_up()

    def add(self, ended: Sequence[tuple[Work, EpisodeScore | None]]) -> None:
        """Keep what ended; a failed episode has no row, and is played again another time."""
        rows = []
        for work, played in ended:
            if played is None:
                self._leave_out(work.plan)
                continue
            priced = dataclasses.replace(played, cost=cost(self._prices, played))
            name = self._names[work.plan]
            rows.append(dataclasses.asdict(priced) | {"evaluation_id": name})
        if rows:
            self._store.transact(lambda session: evaluations.add_episodes(session, rows))
        if time.monotonic() - self._summed > SUM_UP_S:
            self.sum_up()

    def sum_up(self) -> None:
        """Write the figures of all that stands into the evaluations' rows."""
        for plan in self._work:
            self._sum_up(plan)
        self._summed = time.monotonic()

    def measured(self) -> list[PlanResult]:
        """What the episodes of each plan say, whenever they were played."""
        found = []
        for plan, every in self._work.items():
            requested = {each.key for each in every}
            played = [
                each for each in self._read_scores(plan) if (each.item_id, each.repeat) in requested
            ]
            found.append(summarise(plan, [*played, *[None] * self._failed[plan]]))
        return found

    def _sum_up(self, plan: Plan) -> None:
        played, name = self._read_scores(plan), self._names[plan]
        repeats = max((each.repeat for each in played), default=0) + 1
        all_of_it = dataclasses.replace(plan, repeats=repeats)
        values = _figures(summarise(all_of_it, [*played, *[None] * self._failed[plan]]))
        self._store.transact(lambda session: evaluations.sum_up(session, name, values))

    def _leave_out(self, plan: Plan) -> None:
        """Count an episode as failed, and no longer as planned."""
        name, planned = self._names[plan], self._planned[plan]
        self._store.transact(lambda session: evaluations.lower_planned(session, name, planned))
        self._failed[plan] += 1
        self._planned[plan] = max(1, planned - 1)

    def _read_scores(self, plan: Plan) -> list[EpisodeScore]:
        name = self._names[plan]
        return self._store.ask(
            lambda session: [
                _read_score(row) for row in evaluations.evaluation_episodes(session, name)
            ]
        )


def forget_evaluations(store: Store, config: Config, target: Target, plans: Sequence[Plan]) -> None:
    """Drop what was measured of the plans."""
    for plan in plans:
        name = evaluation_id(config, target, plan)
        store.transact(partial(evaluations.delete_evaluation, evaluation_id=name))


def evaluation_id(config: Config, target: Target, plan: Plan) -> str:
    """The id of an evaluation. Raises ConfigError if the chat template cannot be read."""
    where = (plan.task, plan.split, plan.temperature)
    return hash_evaluation(config, target, where, settings(config, plan))


def hash_evaluation(
    config: Config, target: Target, where: tuple[str, str, float], options: str
) -> str:
    """The id of an evaluation. `where`: task, split, temperature; `options`: its `settings`."""
    model = config.model
    named = model.chat_template
    template = read_template(Path(named)) if named else ""
    spoken = [model.call_style, template, model.dtype]
    policy = [target.checkpoint_id, target.fingerprint, *spoken, config.run.seed]
    decides = [policy, *where, ITEM_CHOICE, options]
    return hashlib.sha256(msgspec.json.encode(decides)).hexdigest()[:32]


def settings(config: Config, plan: Plan) -> str:
    """What else decides an episode of a task, whatever policy plays it: JSON with sorted keys."""
    task, sampling = config.tasks[plan.task], config.sampling
    found = {
        "options": task.options,
        **({"source": task.source} if task.source else {}),
        "max_turns": task.max_turns,
        "max_tokens": sampling.max_tokens,
        "max_step_tokens": sampling.max_step_tokens,
        **_container_image(config, plan.task),
    }
    return msgspec.json.encode(found, order="sorted").decode()


def _container_image(config: Config, task: str) -> dict[str, str]:
    """Return the image of a task's containers; nothing for the default, or if it uses none."""
    image = config.envs.docker_image
    if image == Envs().docker_image or config.envs.names_worker():
        return {}
    section = config.tasks[task]
    uses_one = needs_container(registry.source(task, section.options, section.source))
    return {"docker_image": image} if uses_one else {}


def cost(prices: External, played: EpisodeScore) -> float | None:
    """Of the tokens as we count them, at the prices of a million; None without prices."""
    if prices.prompt_price is None and prices.answer_price is None:
        return None
    read = played.prompt_tokens * (prices.prompt_price or 0.0)
    return (read + played.sampled_tokens * (prices.answer_price or 0.0)) / MILLION


def _row(config: Config, target: Target, plan: Plan, name: str) -> Evaluation:
    """Of an evaluation of which nothing is measured yet."""
    return Evaluation(
        evaluation_id=name,
        run_id=target.run_id,
        checkpoint_id=target.checkpoint_id,
        version=target.version,
        policy=target.name or target.checkpoint_id,
        task=plan.task,
        split=plan.split,
        temperature=plan.temperature,
        items=0,
        settings=settings(config, plan),
        **_figures(summarise(plan, [])),
    )


def _figures(one: PlanResult) -> dict[str, Any]:
    """Columns of `evaluations`."""
    return {
        "episodes": one.episodes,
        "success": one.success,
        "low": one.low,
        "high": one.high,
        "cost": one.cost,
        "machine_s": one.machine_s,
        "metrics": {
            "pass_at": {str(k): value for k, value in one.pass_at.items()},
            "reward": one.reward,
            "score": one.score,
            "turns": one.turns,
            "tokens": one.tokens,
            "failed": one.failed,
            "statuses": dict(one.statuses),
            "by_repeat": list(one.by_repeat),
        },
    }


def _read_score(row: EvaluationEpisode) -> EpisodeScore:
    fields = {field.name: getattr(row, field.name) for field in dataclasses.fields(EpisodeScore)}
    return EpisodeScore(**fields | {"status": Status(row.status)})
