"""Two runs of which every row is known: `story`, which learned and was rolled back, and its fork.

Times of `story` are seconds after it began, so that a test can say what took how long. The plan:

    group  task      item    members' scores  became
    a      dbbench   item-1  1 0              trained by version 1
    b      alfworld  item-9  1 0              trained by version 1
    c      dbbench   item-2  0 0              filtered: zero spread
    d      dbbench   item-1  0 0              stale
    e      alfworld  item-8  1 0              rolled back with the first version 2
    f      alfworld  item-8  1 0              trained by the second version 2; one member's first
                                              attempt was stored, and lost
    g      dbbench   item-3  failed failed    failed: one lost its environment, one its worker
    h      dbbench   item-2  queued finished  open
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from known_run_rows import (
    BEGAN,
    CHECKPOINTS,
    NEVER,
    evaluation_episode,
    lineage,
    processes,
    run,
    serving,
    side_rows,
)
from sqlalchemy.orm import Session

from agentrl.core.types import (
    EpisodeState,
    GroupState,
    Reason,
    Status,
    UpdateState,
)
from agentrl.db.models.base import Base
from agentrl.db.models.episodes import Episode, Group, Step, StoredTrajectory
from agentrl.db.models.updates import Update, UpdateGroup
from agentrl.db.store import Store

RUN = "story"


@dataclass(frozen=True, slots=True)
class Played:
    """A group and its members' scores. `steps`: of each member, (checkpoint, track) in order."""

    name: str
    task: str
    item: str
    place: tuple[int, int]
    state: GroupState
    reason: Reason | None
    version: int
    scores: tuple[float, ...]
    steps: tuple[tuple[tuple[str, str], ...], ...]
    at: float


NEW, OLD = ("c0", "current"), ("c0", "lagged(1)")
LATER = ("c1", "current")
PLAYED = (
    Played("a", "dbbench", "item-1", (0, 0), GroupState.TRAINED, None, 0, (1, 0),
           ((NEW, NEW), (OLD,)), 0.0),
    Played("b", "alfworld", "item-9", (0, 0), GroupState.TRAINED, None, 0, (1, 0),
           ((NEW, OLD), (NEW, NEW, NEW)), 0.0),
    Played("c", "dbbench", "item-2", (1, 0), GroupState.FILTERED, Reason.ZERO_SPREAD, 1, (0, 0),
           ((LATER,), (LATER,)), 100.0),
    Played("d", "dbbench", "item-1", (2, 0), GroupState.STALE, Reason.TOO_STALE, 1, (0, 0),
           ((NEW,), (LATER,)), 100.0),
    Played("e", "alfworld", "item-8", (1, 0), GroupState.ROLLED_BACK, Reason.ROLLED_BACK, 1,
           (1, 0), ((LATER,), (LATER,)), 100.0),
    Played("f", "alfworld", "item-8", (1, 1), GroupState.TRAINED, None, 1, (1, 0),
           ((LATER, OLD), (LATER,)), 4000.0),
)  # fmt: skip


def write_known_runs(store: Store) -> None:
    """Write both runs."""
    with store.write() as session:
        _write(session, [run(RUN, None), run("fork", "c1", began=BEGAN + 50_000)])
        _write(session, [*lineage(), *processes()])
        _write(session, [serving("c0", "current", 0, 110), serving("c0", "lagged(1)", 0, None)])
        _write(session, [serving("c1", "current", 90, None)])
        for played in PLAYED:
            _play(session, played)
        _unlucky(session)
        _open(session)
        _learn(session)
        _write(session, side_rows())
        _write(session, [evaluation_episode()])


def _write(session: Session, rows: list[Base]) -> None:
    session.add_all(rows)
    session.flush()


def _group(name: str, task: str, item: str, place: tuple[int, int], **values: Any) -> Group:
    return Group(
        group_id=f"g-{name}",
        run_id="story-1",
        task=task,
        item_id=item,
        position=place[0],
        round=place[1],
        size=2,
        **values,
    )


def _play(session: Session, played: Played) -> None:
    """Queued at `at`, claimed 2 s later; member m ends 10 + m s after its claim; ready at once,
    closed 30 s after the last end."""
    ready = BEGAN + played.at + 13
    group = _group(
        played.name,
        played.task,
        played.item,
        played.place,
        pending=0,
        state=played.state,
        reason=played.reason,
        admitted_version=played.version,
        admitted_at=BEGAN + played.at,
        ready_at=ready,
        closed_at=ready + 30,
    )
    _write(session, [group])
    for member, (score, acted) in enumerate(zip(played.scores, played.steps, strict=True)):
        _finish(session, group, member, score, acted)


def _finish(
    session: Session, group: Group, member: int, score: float, acted: tuple[tuple[str, str], ...]
) -> None:
    episode_id = f"{group.group_id}-{member}"
    claimed = group.admitted_at + 2
    fence = _fence(episode_id)
    _write(
        session,
        [
            _episode(
                group,
                member,
                state=EpisodeState.FINISHED,
                worker_id="w1",
                fence=fence,
                attempts=fence,
                status=Status.COMPLETED if score else Status.TASK_LIMIT,
                reward=score,
                score=score,
                turns=len(acted),
                tokens=30 * len(acted),
                loss_tokens=10 * len(acted),
                body_sha256=sha256(episode_id),
                started_at=claimed,
                ended_at=claimed + 10 + member,
            )
        ],
    )
    for attempt in range(1, fence + 1):
        steps = [_step(episode_id, attempt, number, *step) for number, step in enumerate(acted)]
        body = StoredTrajectory(
            episode_id=episode_id,
            fence=attempt,
            run_id="story-1",
            sha256=sha256(episode_id if attempt == fence else "what was lost"),
            body=b"body of " + episode_id.encode(),
            received_at=claimed + 20,
        )
        _write(session, [*steps, body])


def _fence(episode_id: str) -> int:
    """Which attempt finished."""
    return 2 if episode_id == "g-f-1" else 1


def _episode(group: Group, member: int, **values: Any) -> Episode:
    return Episode(
        episode_id=f"{group.group_id}-{member}",
        run_id=group.run_id,
        group_id=group.group_id,
        member=member,
        task=group.task,
        item_id=group.item_id,
        **{"due_at": NEVER, "queued_at": group.admitted_at, "fence": 1, **values},
    )


def _step(episode_id: str, fence: int, number: int, checkpoint_id: str, track: str) -> Step:
    """2 s of policy, 0.5 s of environment, 10 tokens sampled after 20 of prompt a step."""
    return Step(
        episode_id=episode_id,
        fence=fence,
        number=number,
        run_id="story-1",
        server_id="s1",
        track=track,
        checkpoint_id=checkpoint_id,
        version=CHECKPOINTS.index(checkpoint_id),
        temperature=1.0,
        prompt_tokens=20 + 30 * number,
        token_start=20 + 30 * number,
        token_end=30 + 30 * number,
        trained=True,
        requested_at=BEGAN + 95,
        policy_s=2.0,
        env_s=0.5,
        finish_reason="stop",
        call="[]",
        answer="done",
        redrawn=2 if episode_id == "g-f-0" and number else 0,
    )


def _unlucky(session: Session) -> None:
    """Group g: one member lost its environment three times, the other its worker."""
    group = _group(
        "g",
        "dbbench",
        "item-3",
        (3, 0),
        pending=0,
        state=GroupState.FAILED,
        reason=Reason.TOO_FEW_SURVIVORS,
        admitted_version=1,
        admitted_at=BEGAN + 100,
        closed_at=BEGAN + 200,
    )
    failed = {
        "state": EpisodeState.FAILED,
        "fence": 3,
        "attempts": 3,
        "started_at": BEGAN + 150,
        "ended_at": BEGAN + 190,
        "worker_id": "w2",
    }
    _write(session, [group])
    broken = _episode(group, 0, status=Status.ENV_ERROR, reason=Reason.ENV_ERROR, **failed)
    lost = _episode(group, 1, status=Status.LOST, reason=Reason.LOST, **failed)
    _write(session, [broken, lost])


def _open(session: Session) -> None:
    """Group h: one member waits for its second attempt, the other has finished."""
    group = _group(
        "h",
        "dbbench",
        "item-2",
        (4, 0),
        pending=1,
        state=GroupState.OPEN,
        reason=None,
        admitted_version=2,
        admitted_at=BEGAN + 8000,
    )
    _write(session, [group])
    again = {"fence": 2, "attempts": 1, "reason": Reason.TIMEOUT, "state": EpisodeState.QUEUED}
    _write(session, [_episode(group, 0, **again)])
    _finish(session, group, 1, 0.0, (LATER,))


def _learn(session: Session) -> None:
    plan = [
        ("u1", 1, 1, "c1", UpdateState.COMMITTED, ("a", "b"), 60.0),
        ("u2x", 2, 1, "c2x", UpdateState.ROLLED_BACK, ("e",), 160.0),
        ("u2", 2, 2, "c2", UpdateState.COMMITTED, ("f",), 4060.0),
    ]
    for update_id, version, epoch, checkpoint_id, state, names, at in plan:
        steps = [len(acted) for p in PLAYED if p.name in names for acted in p.steps]
        metrics = {"success": 0.5, "entropy": 1.5 / version, "grad_norm": 0.25, "reward": 0.5}
        update = Update(
            update_id=update_id,
            run_id="story-1",
            version=version,
            trainer_epoch=epoch,
            checkpoint_id=checkpoint_id,
            state=state,
            groups=len(names),
            episodes=len(steps),
            loss_tokens=10 * sum(steps),
            metrics=metrics,
            started_at=BEGAN + at - 4,
            committed_at=BEGAN + at,
        )
        _write(session, [update])
        members = [
            UpdateGroup(
                update_id=update_id,
                episode_id=f"g-{played.name}-{member}",
                group_id=f"g-{played.name}",
                fence=_fence(f"g-{played.name}-{member}"),
                sha256=sha256(f"g-{played.name}-{member}"),
                loss_tokens=10 * len(acted),
            )
            for played in PLAYED
            if played.name in names
            for member, acted in enumerate(played.steps)
        ]
        _write(session, list(members))


def sha256(text: str) -> str:
    """Of a body that stands for an episode's."""
    return hashlib.sha256(text.encode()).hexdigest()
