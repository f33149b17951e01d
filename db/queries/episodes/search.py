"""Searches episodes of a run: filters, text, and keyset pagination, for runs of any size.

    few of an item, checkpoint or update, or all ─▶ the newest so many of a state ─▶ sift ─▶ a page

Every search is bounded (`Limits`): it reads a limited number of the newest episodes of a state
before the cursor, fewer if it reads their texts, and reports how many it read. In other orders than
newest first it sorts that many of the newest. If an item, a checkpoint or an update has few
episodes, it reads only those.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    func,
    select,
    tuple_,
)
from sqlalchemy.orm import Session, aliased

from agentrl.core.types import EpisodeState
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.queries.episodes.filter import (
    OPEN,
    EpisodeFilter,
    Order,
    conditions,
    listed_at,
    narrow_queries,
    sort_value,
)
from agentrl.db.queries.episodes.updates import EpisodeUpdate, episode_updates


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits in episodes: per page, per search, per search of texts, and the number up to which the
    episodes of an item, a checkpoint or an update count as few.
    """

    page: int = 50
    window: int = 20_000
    words: int = 2_000
    few: int = 5_000


SEARCH_LIMITS = SearchLimits()


@dataclass(frozen=True, slots=True)
class PageCursor:
    """The end of a page: the value of its order (for newest first, seconds since the epoch), and
    the episode with that value.
    """

    at: float
    episode_id: str


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """A listed episode. `at`: when it ended; for an open one, when it was queued."""

    episode_id: str
    task: str
    item_id: str
    member: int
    status: str
    reason: str
    reward: float | None
    score: float | None
    turns: int | None
    tokens: int | None
    seconds: float | None
    version: int
    at: float
    update: EpisodeUpdate | None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A page. `older`: start of the next page; None: there is none.

    `window`: largest number of searched episodes. `beyond`: older episodes may match but are on no
    page, because only the newest are sorted.
    """

    rows: Sequence[EpisodeRow]
    older: PageCursor | None
    window: int
    beyond: bool


def tasks_of(session: Session, run_id: str) -> list[str]:
    """Return the tasks of the run's groups."""
    found: list[str] = []
    query = select(func.min(Group.task)).where(Group.run_id == run_id)
    while task := session.scalar(query.where(Group.task > found[-1]) if found else query):
        found.append(task)  # a step through the index each, not a walk over all groups
    return found


def search(
    session: Session,
    run_id: str,
    sought: EpisodeFilter,
    before: PageCursor | None = None,
    limits: SearchLimits = SEARCH_LIMITS,
) -> SearchResult:
    """Return the first matching episodes after `before`, in the requested order."""
    few, more = _few(session, narrow_queries(run_id, sought), limits.few)
    within = limits.words if sought.words else limits.window
    newest = sought.order == Order.NEWEST
    window = _window(run_id, sought.state, before if newest else None, few).limit(within)
    seen = aliased(Episode, window.subquery())
    value = sort_value(seen, sought)
    query = (
        select(seen, Group.admitted_version, value)
        .join(Group, Group.group_id == seen.group_id)
        .where(*conditions(seen, sought), *(_among(seen, each) for each in more))
        .order_by(value.desc(), seen.episode_id.desc())
        .limit(limits.page + 1)
    )
    if before is not None and not newest:
        query = query.where(tuple_(value, seen.episode_id) < tuple_(before.at, before.episode_id))
    found = session.execute(query).all()
    page, full = found[: limits.page], len(found) > limits.page
    update = episode_updates(session, [episode.episode_id for episode, _, _ in page])
    rows = [_row(episode, version, sought.state, update) for episode, version, _ in page]
    last = None if full and newest else _last(session, window, sought.state, within)
    older = last if newest else None
    if full:
        older = PageCursor(float(page[-1][2] or 0.0), rows[-1].episode_id)
    return SearchResult(rows, older, within, beyond=last is not None and not newest)


def _few(
    session: Session, criteria: Sequence[Select[Any]], most: int
) -> tuple[Sequence[str] | None, list[Select[Any]]]:
    """Return all episodes of the first criterion with few episodes (or None), and the other
    criteria.
    """
    for place, each in enumerate(criteria):
        found = session.scalars(each.limit(most + 1)).all()
        if len(found) <= most:
            return found, [*criteria[:place], *criteria[place + 1 :]]
    return None, [*criteria]


def _among(episode: type[Episode], criterion: Select[Any]) -> ColumnElement[bool]:
    """Return a condition that checks a criterion for each episode."""
    (name,) = criterion.selected_columns
    return criterion.where(name == episode.episode_id).exists()


def _window(
    run_id: str, state: EpisodeState, before: PageCursor | None, few: Sequence[str] | None
) -> Select[Any]:
    """Select the episodes of a state, newest first."""
    at = listed_at(Episode, state)
    query = select(Episode).where(Episode.run_id == run_id, Episode.state == state)
    if few is not None:
        query = query.where(Episode.episode_id.in_(few))
    if before is not None:  # the first condition alone is what an index can use
        query = query.where(
            at <= before.at,
            tuple_(at, Episode.episode_id) < tuple_(before.at, before.episode_id),
        )
    return query.order_by(at.desc(), Episode.episode_id.desc())


def _last(
    session: Session, window: Select[Any], state: EpisodeState, within: int
) -> PageCursor | None:
    """Return the end of a full window; None for the last one."""
    seen = aliased(Episode, window.subquery())
    query = (
        select(listed_at(seen, state), seen.episode_id)
        .order_by(listed_at(seen, state).desc(), seen.episode_id.desc())
        .offset(within - 1)
        .limit(1)
    )
    row = session.execute(query).first()
    return PageCursor(float(row[0]), row[1]) if row else None


def _row(
    episode: Episode, version: int, state: EpisodeState, update: Mapping[str, EpisodeUpdate]
) -> EpisodeRow:
    return EpisodeRow(
        episode_id=episode.episode_id,
        task=episode.task,
        item_id=episode.item_id,
        member=episode.member,
        status=episode.status or "",
        reason=episode.reason or "",
        reward=episode.reward,
        score=episode.score,
        turns=episode.turns,
        tokens=episode.tokens,
        seconds=episode.seconds(),
        version=version,
        at=(episode.queued_at if state in OPEN else episode.ended_at) or 0.0,
        update=update.get(episode.episode_id),
    )
