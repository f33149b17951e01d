"""Episodes against the scripted engine behind real HTTP."""

import random
from collections.abc import Sequence
from pathlib import Path

from policy_servers import CLAIMED, FixedPool, ScriptedEnvironment

from agentrl.core.journal import SampledStep, decode_record, encode_record
from agentrl.core.trajectory import Trajectory
from agentrl.core.trajectory_body import check
from agentrl.serving.engine_api import Request
from agentrl.workers.episode import EpisodeLoop, StepJournal
from agentrl.workers.episode_context import EpisodeContext, EpisodeLimits
from agentrl.workers.policies.pool import Sampler

NOWHERE = Path()
LIMITS = EpisodeLimits(max_turns=8, deadline_s=30.0, policy_wait_s=5.0)
VOCABULARY = 300


class RecordingScript:
    """A script that keeps each prompt and its completion."""

    def __init__(self) -> None:
        self.turns: list[tuple[list[int], list[int]]] = []

    def __call__(self, request: Request) -> Sequence[int]:
        source = random.Random(request.seed)
        tokens = [source.randrange(6, VOCABULARY) for _ in range(source.randint(1, 9))]
        tokens += sorted(request.stop_ids)[:1] if source.random() < 0.8 else tokens * 8
        self.turns.append((request.prompt, tokens[: request.max_tokens]))
        return tokens


class MemoryJournal:
    """A journal in memory. `recorded`: what a former attempt kept."""

    def __init__(self, recorded: Sequence[SampledStep] = ()) -> None:
        self.steps = list(recorded)
        self.remaining = len(self.steps)

    def next_recorded(self) -> SampledStep | None:
        if not self.remaining:
            return None
        self.remaining -= 1
        return self.steps[len(self.steps) - self.remaining - 1]

    def append(self, step: SampledStep) -> None:
        decoded = decode_record(encode_record(step))
        assert isinstance(decoded, SampledStep)
        self.steps.append(decoded)


def run_episode(
    env: ScriptedEnvironment,
    pool: FixedPool,
    context: EpisodeContext,
    limits: EpisodeLimits = LIMITS,
    *,
    seed: str = "seed",
    journal: StepJournal | None = None,
) -> Trajectory:
    loop = EpisodeLoop(CLAIMED, "run", env, Sampler(pool, context.sampling, seed), context)
    trajectory = loop.run(limits, journal)
    check(trajectory)
    return trajectory
