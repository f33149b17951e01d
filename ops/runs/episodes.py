"""`agentrl episodes`: lists a run's newest episodes, or prints one turn by turn."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from agentrl.core.errors import StoreError
from agentrl.core.trajectory import Trajectory
from agentrl.dashboard import vocabulary
from agentrl.dashboard.links import Here
from agentrl.dashboard.viewmodels.episodes import (
    directories,
    headline,
    moment,
    read_episode,
    readable,
    time_column,
    trajectory_of,
    update_name,
)
from agentrl.dashboard.viewmodels.tokens import token_view
from agentrl.db.admin.readonly import open_history
from agentrl.db.queries.episodes.detail import EpisodeDetail, Member
from agentrl.db.queries.episodes.filter import EpisodeFilter
from agentrl.db.queries.episodes.search import (
    SEARCH_LIMITS,
    EpisodeRow,
    PageCursor,
    SearchLimits,
    search,
)
from agentrl.db.store import Store
from agentrl.db.transitions import runs
from agentrl.ops.runs.lifecycle import RunPlace
from agentrl.ops.tables import console, plain, without_controls


@contextmanager
def open_run(where: RunPlace) -> Iterator[tuple[Store, Here]]:
    """Open a run's history. Raises StoreError if the run does not exist."""
    with closing(open_history(where.url)) as store:
        with store.read() as session:
            run_id = runs.require_run(session, where.run).run_id
        yield store, Here(run_id, where.run)


def list_episodes(
    where: RunPlace,
    wanted: EpisodeFilter,
    limit: int,
    *,
    as_json: bool,
    limits: SearchLimits = SEARCH_LIMITS,
) -> None:
    """Print the newest episodes that match, of the whole history. Raises StoreError."""
    found: list[EpisodeRow] = []
    before: PageCursor | None = None
    with open_run(where) as (store, here), store.read() as session:
        while len(found) < limit:
            page = replace(limits, page=limit - len(found))
            result = search(session, here.run_id, wanted, before, page)
            found += result.rows
            before = result.older
            if before is None:
                break
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    heads = (
        "episode",
        "item",
        time_column(wanted.state),
        "status",
        "reward",
        "turns",
        "tokens",
        "trained in",
    )
    table = plain(*heads)
    for each in found:
        table.add_row(here.short(each.episode_id), *_cells(each))
    console().print(table if found else "no episode matches")


def show_episode(where: RunPlace, episode: str, *, as_json: bool) -> None:
    """Print the prompt, calls and answers of an episode.

    `episode`: its id, also without the run's id at its start. Raises StoreError if it is unknown.
    """
    with open_run(where) as (store, here):
        names = (episode, f"{here.run_id}-{episode}")
        for name in names:
            if detail := read_episode(store, here.run_id, name):
                break
        else:
            raise StoreError(
                f"run {where.run} has no episode {episode}",
                hint="`agentrl episodes` without an episode lists the newest ones",
            )
        body, missing = trajectory_of(detail)
        prompt = _prompt(store, here.run_id, detail, body) if body else None
    if as_json:
        whole = {**_as_json(detail), "prompt": prompt, "prompt_missing": missing}
        print(msgspec.json.encode(whole).decode())
    else:
        _show(detail, missing if prompt is None else prompt)


def _prompt(store: Store, run_id: str, detail: EpisodeDetail, body: Trajectory) -> str:
    """Return the text before the first step."""
    file = vocabulary.find(directories(store, run_id, detail))
    known = vocabulary.vocabulary_of(file) if file else vocabulary.NONE
    return "".join(token.text for token in token_view(body, known, None).observation_tokens(0))


def _show(detail: EpisodeDetail, prompt: str) -> None:
    parts = [_describe(detail), "── prompt", prompt]
    for step in detail.steps:
        parts += [f"── {headline(step)}", readable(step.call) or "no call"]
        parts.append(f"→ {step.answer}" if step.answer else "→ no answer")
    for part in parts:
        print(without_controls(part))


def _describe(detail: EpisodeDetail) -> str:
    itself = detail.itself
    parts = [
        itself.episode_id,
        f"item {detail.item_id}",
        _state(itself),
        f"{itself.turns or 0} turns",
        f"{itself.tokens or 0} tokens",
        f"attempt {itself.attempts}",
    ]
    if itself.reward is not None:
        parts.append(f"reward {itself.reward:.3g}")
    if itself.score is not None:
        parts.append(f"score {itself.score:.3g}")
    if itself.seconds is not None:
        parts.append(f"{itself.seconds:.1f} s")
    if (update := itself.update) is not None:
        parts.append(f"trained in {update_name(update)}")
        parts += [f"advantage {update.advantage:+.3g}"] if update.advantage is not None else []
    return " · ".join(parts)


def _state(member: Member) -> str:
    ended = member.status or member.reason
    return f"{member.state} ({ended})" if ended else member.state


def _as_json(detail: EpisodeDetail) -> dict[str, Any]:
    whole: dict[str, Any] = msgspec.to_builtins(replace(detail, body=None))
    del whole["body"], whole["members"]
    return whole


def _cells(row: EpisodeRow) -> list[str]:
    reward = "–" if row.reward is None else f"{row.reward:.3g}"
    counts = ["–" if each is None else str(each) for each in (row.turns, row.tokens)]
    status = row.status or row.reason or "–"
    trained = update_name(row.update) if row.update else "–"
    return [row.item_id, moment(row.at), status, reward, *counts, trained]
