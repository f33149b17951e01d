"""Workers of a task that a model judges."""

from openai_endpoint import Endpoint
from policy_servers import ScriptedEnvironment, ScriptedSource, won
from takeovers import ANSWERS, Workers

from agentrl.core.config.sections.tasks import Judge
from agentrl.workers.worker import EpisodeWorker

CRITIC = Judge(policy="critic", weight=2.0)


class Judged:
    """Workers of a judged task, whose turns are rewarded 0.5, 0.5, 0.5 and 1.

    `judge`: unless a worker gets another. `played`: environments that were made.
    """

    def __init__(self, workers: Workers, endpoint: Endpoint) -> None:
        self.workers, self.endpoint = workers, endpoint
        self.judge = CRITIC
        self.played = 0

    def worker(
        self, journal: str = "steps", *, judge: Judge | None = None, attempts: int = 9
    ) -> EpisodeWorker:
        def make(_item: object) -> ScriptedEnvironment:
            self.played += 1
            return ScriptedEnvironment(list(ANSWERS), won(), reward=0.5)

        source = ScriptedSource(make)
        return self.workers.start(source, journal, judge=judge or self.judge, attempts=attempts)
