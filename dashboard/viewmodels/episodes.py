"""What the page *Episodes* shows: a page of episodes as the URL asks for it, or one episode.

?run= & task= & state= & … & before=    ⇄ Filter and Cursor        ?run= & episode= ─▶ Story
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite
from typing import Any, get_args, get_type_hints

import msgspec

from agentrl.core import config_loading
from agentrl.core.errors import AgentRLError, MessageError
from agentrl.core.trajectory import Trajectory
from agentrl.core.trajectory_body import body_of
from agentrl.core.types import EpisodeState
from agentrl.dashboard.links import Here
from agentrl.dashboard.markup import Cell, Link
from agentrl.dashboard.viewmodels.tokens import policy_name
from agentrl.db.queries.episodes.detail import (
    EpisodeDetail,
    Member,
    StepRow,
    config_of,
    episode_detail,
    model_directories,
)
from agentrl.db.queries.episodes.filter import OPEN, EpisodeFilter
from agentrl.db.queries.episodes.search import PageCursor, SearchResult, search
from agentrl.db.queries.episodes.updates import EpisodeUpdate
from agentrl.db.store import Store

PAGE = "Episodes"
TEXT = 2_000  # characters of an answer in a sibling's column
WHOLE = 2**53 - 1  # the largest whole number of a form
KINDS: dict[str, Any] = get_type_hints(EpisodeFilter)


def filter_from_query(parameters: Mapping[str, str]) -> EpisodeFilter:
    """Return the filter in a URL; invalid values are ignored."""
    values: dict[str, Any] = {}
    for name, kind in KINDS.items():
        if parameters.get(name):
            with suppress(ValueError):
                values[name] = _read(parameters[name], kind)
    return EpisodeFilter(**values)


def _read(written: str, kind: Any) -> Any:
    """Parse a value. Raises ValueError if it is invalid."""
    (kind, *_) = get_args(kind) or (kind,)
    value = kind(written)
    if (
        (isinstance(value, int) and not 0 <= value <= WHOLE)
        or (isinstance(value, float) and not isfinite(value))
        or "\0" in written  # Postgres has no such text
    ):
        raise ValueError(f"{written!r} is too large")
    return value


def parameters_of(criteria: EpisodeFilter) -> dict[str, str]:
    """Return the URL parameters of a filter; only values that differ from the default filter."""
    nothing = asdict(EpisodeFilter())
    return {
        name: value.value if isinstance(value, StrEnum) else str(value)
        for name, value in asdict(criteria).items()
        if value != nothing[name]
    }


def cursor(parameters: Mapping[str, str]) -> PageCursor | None:
    """Return the start of the page in a URL."""
    at, _, episode_id = parameters.get("before", "").partition("~")
    try:
        return PageCursor(_read(at, float), _read(episode_id, str)) if episode_id else None
    except ValueError:
        return None


def before(at: PageCursor) -> str:
    """Return a cursor as a URL parameter."""
    return f"{at.at!r}~{at.episode_id}"


def read_page(
    store: Store, run_id: str, criteria: EpisodeFilter, at: PageCursor | None
) -> SearchResult:
    """Read the episodes of one page."""
    with store.read() as session:
        return search(session, run_id, criteria, at)


def nothing(result: SearchResult, *, first: bool) -> str:
    """Return the text for a page without rows."""
    if result.older is not None:
        return "No episode on this page matches the filter."
    if result.beyond:
        none = f"None of the newest {result.window:,} episodes matches."
        return f"{none} Order by newest to search more."
    return "No episode matches." if first else "No more episodes."


def time_column(state: EpisodeState) -> str:
    """Return the name of the time by which episodes of a state are listed."""
    return "queued, UTC" if state in OPEN else "ended, UTC"


def rows(result: SearchResult, here: Here, state: EpisodeState) -> list[dict[str, Cell]]:
    """Return the rows of the page, with links to the episodes, all of which have one state."""
    at = time_column(state)
    return [
        {
            "episode": Link(here.short(each.episode_id), here.to(PAGE, episode=each.episode_id)),
            "task": each.task,
            "item": each.item_id,
            at: moment(each.at),
            "status": each.status or each.reason or "–",
            "reward": each.reward,
            "score": each.score,
            "turns": each.turns,
            "tokens": each.tokens,
            "seconds": each.seconds,
            "version": f"v{each.version}",
            "trained in": _update_cell(each.update, here),
            "advantage": each.update.advantage if each.update else None,
        }
        for each in result.rows
    ]


def _update_cell(update: EpisodeUpdate | None, here: Here) -> Cell:
    if update is None:
        return "–"
    return Link(update_name(update), here.to("Checkpoints", checkpoint=update.checkpoint_id))


def update_name(update: EpisodeUpdate) -> str:
    """Return the version of an update, and whether it was rolled back."""
    return f"v{update.version}" + ("" if update.is_live else " (rolled back)")


def moment(at: float) -> str:
    """Format a time of the database clock in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M:%S") if at else "–"


def read_episode(store: Store, run_id: str, episode_id: str) -> EpisodeDetail | None:
    """Read an episode with its siblings."""
    with store.read() as session:
        return episode_detail(session, run_id, episode_id)


def directories(store: Store, run_id: str, detail: EpisodeDetail) -> list[str]:
    """Return possible directories of the vocabulary of an episode's tokens, best first."""
    acted = sorted({step.checkpoint_id for step in detail.steps})
    with store.read() as session:
        paths = model_directories(session, run_id, acted)
        written = config_of(session, run_id)
    with suppress(AgentRLError):
        paths.append(str(config_loading.from_json(written, "the run").model.path))
    return paths


def trajectory_of(detail: EpisodeDetail) -> tuple[Trajectory | None, str]:
    """Return the stored trajectory, or why it is unavailable."""
    if detail.body is None:
        return (
            None,
            "The trajectory is not stored: the episode has not ended, or the recorder is behind.",
        )
    if not detail.body:
        return None, "The trajectory was deleted (`agentrl db prune --bodies`)."
    try:
        return body_of(detail.body, detail.sha256), ""
    except MessageError as error:
        return None, f"The stored trajectory cannot be read: {error}"


def readable(call: str) -> str:
    """Format a step's parsed calls one per line, `name {"argument": value}`, if possible."""
    try:
        calls = msgspec.json.decode(call)
        return "\n".join(_call(each) for each in calls) if isinstance(calls, list) else call
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return call


def _call(call: Any) -> str:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return msgspec.json.encode(call).decode()
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    wrong = f"  ✗ {call['error']}" if call.get("error") else ""
    return f"{call['name']} {text}{wrong}"


def member_rows(members: Sequence[Member], here: Here) -> list[dict[str, Cell]]:
    """Return the rows of a group's members."""
    return [
        {
            "member": each.member,
            "episode": Link(here.short(each.episode_id), here.to(PAGE, episode=each.episode_id)),
            "state": each.state,
            "status": each.status or each.reason or "–",
            "reward": each.reward,
            "score": each.score,
            "turns": each.turns,
            "tokens": each.tokens,
            "trained in": _update_cell(each.update, here),
            "advantage": each.update.advantage if each.update else None,
        }
        for each in members
    ]


def contrast(itself: Member, members: Sequence[Member]) -> Member | None:
    """Return the sibling whose reward differs most, as the most instructive comparison."""
    others = [each for each in members if each.episode_id != itself.episode_id]
    ended = [each for each in others if each.reward is not None]
    if itself.reward is None or not ended:
        return others[0] if others else None
    mine = itself.reward
    return max(ended, key=lambda each: (abs((each.reward or 0.0) - mine), -each.member))


def headline(step: StepRow) -> str:
    """Describe a step in one line."""
    parts = [
        f"Step {step.number}",
        policy_name(step.version, step.track),
        f"{step.end - step.start} tokens",
        f"{step.policy_s:.2f} s policy",
        f"{step.env_s:.2f} s environment",
    ]
    if step.finish_reason != "stop":
        parts.append(f"finish reason {step.finish_reason}")
    if step.parent is not None:
        begins = step.parent < 0
        parts.append("begins a conversation" if begins else f"follows step {step.parent}")
    if step.reward:
        parts.append(f"reward {step.reward:.3g}")
    if step.judge_score is not None:
        parts.append(f"judge's score {step.judge_score:.3g}")
    if step.branch_reward is not None:
        parts.append(f"branch reward {step.branch_reward:.3g}")
    if step.trained is False:
        parts.append("left out of the loss")
    if step.redrawn:
        parts.append(f"{step.redrawn} policies replaced")
    return " · ".join(parts)
