"""Details of one episode and its group: their rows and one trajectory."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, String, case, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from agentrl.db.models.episodes import Episode, Group, Step, StoredTrajectory
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.queries.episodes.updates import EpisodeUpdate, episode_updates
from agentrl.db.query_parts import columns_of

TEXT = 20_000  # characters of a call or an answer that are read


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step: policy, call, answer. Times in seconds. `reward`: None in an old row.

    `parent`: the step that it follows; None: the one before; -1: it begins a conversation.
    `branch_reward`: of the branch that ends with it, if that has a reward of its own. `trained`:
    whether its tokens are in the loss; None: in an old row. `judge_score`: of the turn that it
    ends, if the judge scored turns.
    """

    number: int
    server_id: str
    track: str
    checkpoint_id: str
    version: int
    temperature: float
    prompt_tokens: int
    start: int
    end: int
    policy_s: float
    env_s: float
    finish_reason: str
    call: str
    answer: str
    redrawn: int
    reward: float | None
    parent: int | None
    branch_reward: float | None
    trained: bool | None
    judge_score: float | None


@dataclass(frozen=True, slots=True)
class Member:
    """An episode of the group."""

    episode_id: str
    member: int
    state: str
    status: str
    reason: str
    reward: float | None
    score: float | None
    turns: int | None
    tokens: int | None
    loss_tokens: int | None
    fence: int
    attempts: int
    worker_id: str
    seconds: float | None
    update: EpisodeUpdate | None


@dataclass(frozen=True, slots=True)
class EpisodeDetail:
    """An episode with its group. `body`: as stored; None: not stored (yet); empty: deleted.

    `sha256`: hash of the body in the row; empty before the episode has finished. `judge`, …: None:
    no judge scored it.
    """

    task: str
    item_id: str
    group_id: str
    group_state: str
    group_reason: str
    admitted_version: int
    horizon: int | None
    itself: Member
    members: Sequence[Member]
    steps: Sequence[StepRow]
    body: bytes | None
    sha256: str
    judge: str | None
    judge_score: float | None
    judge_reply: str | None


def episode_detail(session: Session, run_id: str, episode_id: str) -> EpisodeDetail | None:
    """Return the episode; None: the run has no such episode."""
    row = session.get(Episode, episode_id)
    if row is None or row.run_id != run_id:
        return None
    group = session.get_one(Group, row.group_id)
    rows = session.scalars(
        select(Episode).where(Episode.group_id == row.group_id).order_by(Episode.member)
    ).all()
    update = episode_updates(session, [each.episode_id for each in rows])
    stored = session.get(StoredTrajectory, (episode_id, row.fence))
    members = [_member(each, update.get(each.episode_id)) for each in rows]
    return EpisodeDetail(
        task=row.task,
        item_id=row.item_id,
        group_id=row.group_id,
        group_state=group.state,
        group_reason=group.reason or "",
        admitted_version=group.admitted_version,
        horizon=group.horizon,
        itself=next(each for each in members if each.episode_id == episode_id),
        members=members,
        steps=episode_steps(session, episode_id, row.fence),
        body=stored.body if stored else None,
        sha256=row.body_sha256 or "",
        judge=stored.judge if stored else None,
        judge_score=stored.judge_score if stored else None,
        judge_reply=stored.judge_reply if stored else None,
    )


def episode_steps(session: Session, episode_id: str, fence: int, most: int = TEXT) -> list[StepRow]:
    """Return the steps of an attempt in order; none before the recorder has stored its body.

    `most`: characters of an answer; a longer one ends with its length, as a call over `TEXT` does.
    """
    columns = columns_of(
        StepRow,
        Step,
        start=Step.token_start.expression,
        end=Step.token_end.expression,
        call=_shorten(Step.call, TEXT),
        answer=_shorten(Step.answer, most),
    )
    query = (
        select(*columns)
        .where(Step.episode_id == episode_id, Step.fence == fence)
        .order_by(Step.number)
    )
    return [StepRow(*tuple(row)) for row in session.execute(query)]


def _shorten(text: InstrumentedAttribute[str], most: int) -> ColumnElement[str]:
    """Cut a text in the database, and append its full length (as envs/contract.py does)."""
    length = func.length(text)
    cut = func.substr(text, 1, most) + "… (" + cast(length, String) + " characters)"
    return case((length > most, cut), else_=text)


def model_directories(session: Session, run_id: str, acted: Sequence[str]) -> list[str]:
    """Return directories with the run's model: of acting checkpoints, then of the first one."""
    query = select(Checkpoint.checkpoint_id, Checkpoint.path)
    rows = session.execute(
        query.where(Checkpoint.run_id == run_id, Checkpoint.checkpoint_id.in_(acted))
    ).all()
    first = session.execute(
        query.where(Checkpoint.run_id == run_id).order_by(Checkpoint.version).limit(1)
    ).all()
    return [path for _, path in [*rows, *first] if path]


def config_of(session: Session, run_id: str) -> str:
    """Return the stored configuration of the run."""
    return session.scalars(select(Run.config).where(Run.run_id == run_id)).one()


def _member(row: Episode, update: EpisodeUpdate | None) -> Member:
    return Member(
        episode_id=row.episode_id,
        member=row.member,
        state=row.state,
        status=row.status or "",
        reason=row.reason or "",
        reward=row.reward,
        score=row.score,
        turns=row.turns,
        tokens=row.tokens,
        loss_tokens=row.loss_tokens,
        fence=row.fence,
        attempts=row.attempts,
        worker_id=row.worker_id or "",
        seconds=row.seconds(),
        update=update,
    )
