"""A tiny random model and trajectories of any shape, made as workers make them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from random_model import save_random_qwen3

from agentrl.core.trajectory import PolicyRef, StepRecord, Trajectory
from agentrl.core.trajectory_body import check
from agentrl.core.types import Status

VOCABULARY = 96
CURRENT = PolicyRef(checkpoint_id="c4", version=4, track="current", server_id="s")
LAGGED = PolicyRef(checkpoint_id="c0", version=0, track="lagged(4)", server_id="s")
EXTERNAL = PolicyRef(
    checkpoint_id="x", version=0, track="pinned(x)", server_id="s", trainable=False
)

MakeTrajectory = Callable[..., Trajectory]


def _make_trajectory(
    spans: Sequence[tuple[int, int]] = ((4, 8),),
    length: int = 10,
    *,
    reward: float = 0.0,
    task: str = "db",
    status: Status = Status.COMPLETED,
    policies: Sequence[PolicyRef] = (CURRENT, LAGGED),
    temperatures: Sequence[float] = (1.0,),
    tokens: Sequence[int] | None = None,
    logprobs: Sequence[float] | None = None,
    seed: int = 0,
) -> Trajectory:
    """Spans are sampled in turn by each of the policies at each of the temperatures."""
    random = np.random.default_rng(seed)
    drawn = random.integers(0, VOCABULARY, length) if tokens is None else np.array(tokens)
    mask = np.zeros(length, np.uint8)
    sampled_by = np.zeros(length, np.uint8)
    behaviour = random.uniform(-6, -3, length) if logprobs is None else np.array(logprobs)
    steps = []
    for number, (start, end) in enumerate(spans):
        mask[start:end] = policies[number % len(policies)].trainable
        sampled_by[start:end] = number % len(policies)
        steps.append(
            StepRecord(
                policy_index=number % len(policies),
                start=start,
                end=end,
                prompt_tokens=start,
                temperature=temperatures[number % len(temperatures)],
                requested_at=0.0,
                policy_s=0.0,
                env_s=0.0,
                finish_reason="stop",
                call="",
                answer="",
            )
        )
    trajectory = Trajectory(
        run_id="run",
        group_id="group",
        episode_id=f"episode-{seed}",
        member=seed,
        attempt=1,
        fence=1,
        task=task,
        item_id="item",
        status=status,
        reward=reward,
        score=reward,
        token_ids=drawn.astype("<i4").tobytes(),
        loss_mask=mask.tobytes(),
        logprobs=(behaviour * mask).astype("<f4").tobytes(),
        policy_index=sampled_by.tobytes(),
        policies=tuple(policies),
        steps=tuple(steps),
        started_at=0.0,
        finished_at=1.0,
    )
    check(trajectory)
    return trajectory


@pytest.fixture(scope="session")
def make_trajectory() -> MakeTrajectory:
    return _make_trajectory


@pytest.fixture(scope="session")
def policies() -> dict[str, PolicyRef]:
    return {"current": CURRENT, "lagged": LAGGED, "external": EXTERNAL}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of 40 k parameters, tied, with stand-ins for tokenizer files."""
    directory = tmp_path_factory.mktemp("model")
    save_random_qwen3(directory, 0, vocab_size=VOCABULARY)
    (directory / "tokenizer.json").write_text('{"stands": "in"}')
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return directory
