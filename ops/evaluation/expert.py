"""Measures the experts of tasks, which play the walkthrough or the gold, without a model.

item ─▶ environment + expert, turn by turn ─▶ EpisodeScore
"""

import threading
import time
from collections.abc import Mapping

from agentrl.core.config.config import Config
from agentrl.core.types import Status
from agentrl.envs.contract import TaskSource
from agentrl.envs.play import acts_of, outcome_of, take_turns
from agentrl.ops.evaluation.evaluate import EpisodePlayer, EpisodeScore, Work
from agentrl.workers.attempt_errors import EpisodeStopped
from agentrl.workers.turn import close_environment


class ExpertEvaluator(EpisodePlayer):
    """Plays each item with its own expert, seeded by the repeat.

    An episode of an item without an expert cannot be played.
    """

    def __init__(
        self,
        config: Config,
        sources: Mapping[str, TaskSource],
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__(config, stop)
        self._sources = sources

    def _attempt(self, work: Work, attempt: int) -> EpisodeScore:  # noqa: ARG002
        source, item = self._sources[work.plan.task], work.item
        most = self._config.tasks[work.plan.task].max_turns or source.max_turns
        agent = acts_of(source.expert(item, seed=work.repeat))
        began, turns = time.monotonic(), []
        environment = source.make(item)
        try:
            first = environment.start().messages
            for turn in take_turns(environment, first, agent, most):
                turns.append(turn)
                if self._stop.is_set():
                    raise EpisodeStopped("the evaluation is stopping")
        finally:
            close_environment(environment)
        outcome = outcome_of(first, turns)
        return EpisodeScore(
            item_id=item.item_id,
            repeat=work.repeat,
            status=outcome.status if outcome.done else Status.TASK_LIMIT,
            reward=outcome.reward,
            score=outcome.score if outcome.done else 0.0,
            turns=len(turns),
            tokens=0,
            prompt_tokens=0,
            sampled_tokens=0,
            seconds=time.monotonic() - began,
        )
