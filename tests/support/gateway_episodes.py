"""Episodes of agent programs, played by the loop of a worker with a scripted policy."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from policy_servers import CLAIMED, FixedPool, serve
from running import ROOT

from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.trajectory import Trajectory
from agentrl.core.trajectory_body import check
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.envs.contract import Environment
from agentrl.serving.engine_api import ModelLimits as EngineLimits
from agentrl.serving.engine_api import Request
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.episode import EpisodeLoop
from agentrl.workers.episode_context import EpisodeContext, EpisodeLimits
from agentrl.workers.policies.client import PolicyClient
from agentrl.workers.policies.pool import Sampler

TEMPLATE = ChatTemplate.load(ROOT / "models" / "tiny")


def played(
    environment: Environment, script: Callable[[Request], Sequence[int]], *, step_tokens: int = 12
) -> Trajectory:
    """Play with a policy that says what the script says; return the body, which is well-formed."""
    engine = ScriptedEngine(script, limits=EngineLimits(1024, 4096))
    with serve(engine, {"c": ("current", Path())}) as server, closing(PolicyClient()) as client:
        context = EpisodeContext(
            template=TEMPLATE,
            style="plain",
            stop_ids=sorted(TEMPLATE.stop_ids),
            sampling=Sampling(max_step_tokens=step_tokens, max_tokens=400),
            client=client,
            clock=time.time,
            stop=threading.Event(),
        )
        pool = FixedPool(LivePolicy("s", server.url, "current", "c", 0))
        sampler = Sampler(pool, context.sampling, "seed")
        body = EpisodeLoop(CLAIMED, "run", environment, sampler, context).run(
            EpisodeLimits(20, 60.0, 5.0)
        )
    check(body)
    return body
