"""Trajectories for tests: well-formed, of any length and content."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from agentrl.broker.messages import CheckpointPublished, EpisodeFinished
from agentrl.core.trajectory import PolicyRef, StepRecord, Trajectory
from agentrl.core.types import Status
from agentrl.db.transitions.episodes import ClaimedEpisode

SPANS = ((5, 3), (4, 6))  # (tokens observed, tokens sampled) of each step


def trajectory(
    run_id: str = "run",
    *,
    member: int = 0,
    spans: tuple[tuple[int, int], ...] = SPANS,
    text: str = "answer",
    status: Status = Status.COMPLETED,
) -> Trajectory:
    """Steps alternate between two policies; tokens and log-probabilities count upwards."""
    mask: list[int] = []
    policy: list[int] = []
    steps = []
    for number, (observed, sampled) in enumerate(spans):
        index = number % 2
        start = len(mask) + observed
        mask += [0] * observed + [1] * sampled
        policy += [0] * observed + [index] * sampled
        steps.append(_step(index, start, start + sampled, text))
    length = len(mask)
    logprobs = -np.arange(length, dtype="<f4") / 7 * np.array(mask, dtype="<f4")
    return Trajectory(
        run_id=run_id,
        group_id="group",
        episode_id=f"episode-{member}",
        member=member,
        attempt=1,
        fence=1,
        task="dbbench",
        item_id="item",
        status=status,
        reward=1.0,
        score=0.5,
        token_ids=np.arange(length, dtype="<i4").tobytes(),
        loss_mask=bytes(mask),
        logprobs=logprobs.astype("<f4").tobytes(),
        policy_index=bytes(policy),
        policies=tuple(
            PolicyRef(checkpoint_id=f"c{i}", version=i, track=track, server_id="policy")
            for i, track in enumerate(("current", "lagged(4)"))
        ),
        steps=tuple(steps),
        started_at=1.0,
        finished_at=2.5,
        metrics={"turns": float(len(spans))},
    )


def body_of(
    claimed: ClaimedEpisode, plain: Trajectory, policy: Mapping[str, Any], **more: Any
) -> Trajectory:
    """The body that an attempt would publish: `plain` with its ids and its policies' fields.

    `more`: further fields of the body.
    """
    return msgspec.structs.replace(
        plain,
        group_id=claimed.group_id,
        episode_id=claimed.episode_id,
        member=claimed.member,
        attempt=claimed.attempt,
        fence=claimed.fence,
        started_at=claimed.started_at,
        policies=tuple(msgspec.structs.replace(each, **policy) for each in plain.policies),
        **more,
    )


def finished(run_id: str = "run", *, member: int = 0, text: str = "answer") -> EpisodeFinished:
    return EpisodeFinished(trajectory=trajectory(run_id, member=member, text=text))


def _step(index: int, start: int, end: int, text: str) -> StepRecord:
    return StepRecord(
        policy_index=index,
        start=start,
        end=end,
        prompt_tokens=start,
        temperature=1.0,
        requested_at=1.5,
        policy_s=0.1,
        env_s=0.01,
        finish_reason="stop",
        call="[]",
        answer=text,
    )


_span = st.tuples(st.integers(0, 40), st.integers(0, 40))
trajectories = st.builds(
    trajectory,
    st.text(max_size=20),
    member=st.integers(0, 2**31),
    spans=st.lists(_span, max_size=8).map(tuple),
    text=st.text(max_size=2000),
    status=st.sampled_from(Status),
)


def published_event(run_id: str, checkpoint_id: str = "c1") -> CheckpointPublished:
    """Return a CheckpointPublished event."""
    return CheckpointPublished(run_id=run_id, version=1, checkpoint_id=checkpoint_id)
