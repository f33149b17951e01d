"""A policy that judges: the real server of an external model, before a scripted endpoint."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from openai_endpoint import Answer, Endpoint, Script, completion, serve_endpoint
from running import eventually

from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Worker
from agentrl.core.config.sections.policies import External, Model, PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.db.registry.external_policies import live_server
from agentrl.db.store import Store
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.policy_process import FollowedRun, serve_policy

ROOT = Path(__file__).parents[2]
MODEL = "big"
JUDGE = PolicyServer(
    name="critic",
    engine="external",
    beat_s=0.1,
    external=External(url="http://localhost/v1", model=MODEL, retries=0),
)


def scored(score: object) -> Answer:
    """Return a judge's answer."""
    return completion(f"It went so.\nScore: {score}")


def scored_turns(*scores: object) -> Answer:
    """Return a judge's answer with a score for each turn."""
    lines = (f"Turn {turn}: It went so. Score: {score}" for turn, score in enumerate(scores, 1))
    return completion("\n".join(lines))


@contextmanager
def judge_policy(
    store: Store, run_id: str, script: Script = lambda _: scored(0.75)
) -> Iterator[Endpoint]:
    """Serve the policy "critic" of a run until the block ends. It scores 0.75, until told else."""
    with serve_endpoint(script) as endpoint:
        external = msgspec.structs.replace(JUDGE.external, url=endpoint.url)
        server = msgspec.structs.replace(JUDGE, external=external)
        config = Config(
            tasks={"dbbench": Task()},
            policy=[server],
            model=Model(path=str(ROOT / "models" / "tiny")),
            worker=Worker(completion_timeout_s=60.0),
        )
        stop, run = threading.Event(), FollowedRun(run_id, store)
        thread = threading.Thread(
            target=serve_policy, args=(serving_config(config), server, run, stop)
        )
        thread.start()
        try:
            eventually(
                lambda: store.ask(lambda session: live_server(session, run_id, "critic")),
                within_s=60,
                text=lambda: "the judge is not served",
            )
            yield endpoint
        finally:
            stop.set()
            thread.join(60)
