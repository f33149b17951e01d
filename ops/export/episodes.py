"""Writes a run's episodes: Parquet with a dataset card, or chat JSONL for supervised fine-tuning.

bodies of a run, chosen by task and reward ─▶ messages, tokens, masks, rewards, policies ─▶ OUT
OUT is written under another name and renamed: it is complete or absent.
"""

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from agentrl.core.errors import MessageError, StoreError
from agentrl.core.trajectory import Trajectory
from agentrl.core.trajectory_body import body_of
from agentrl.db.admin.episode_dataset import write_dataset
from agentrl.db.queries.episodes.updates import EpisodeUpdate, episode_updates
from agentrl.db.store import Store
from agentrl.db.transitions import runs
from agentrl.db.transitions.trajectories import recordings
from agentrl.envs.contract import Message
from agentrl.ops.export.card import write_card
from agentrl.ops.export.messages import read_messages
from agentrl.ops.replay.replayer import open_replay
from agentrl.workers.conversation.template import ChatTemplate

AT_ONCE = 64  # bodies in memory
UNREAD = "no messages give exactly their tokens"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Which episodes. `run`: the configuration's where empty. `task`: all where empty.

    `min_reward`: of an episode; None: any. `only`: ids to choose from; None: all.
    """

    config: Path
    out: Path
    run: str = ""
    task: str = ""
    min_reward: float | None = None
    only: frozenset[str] | None = None


@dataclass(slots=True)
class ExportCounts:
    """What an export holds. `unread`: episodes without messages. `missing`: bodies that were
    pruned, are damaged or have not arrived.
    """

    run: str
    episodes: Counter[str] = field(default_factory=Counter)
    rewards: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    versions: set[int] = field(default_factory=set)
    unread: int = 0
    missing: int = 0

    @property
    def total(self) -> int:
        return self.episodes.total()


@dataclass(frozen=True, slots=True)
class ExportedEpisode:
    """An episode with its messages, None if unread, and the update that trained on it."""

    body: Trajectory
    messages: Sequence[Message] | None
    update: EpisodeUpdate | None


def export_dataset(request: ExportRequest) -> str:
    """Write OUT/README.md and OUT/data/train-N.parquet; return the message to print.

    Raises StoreError: no pyarrow, OUT exists, no such run or episode.
    """
    partial = _partial(request.out)
    try:
        with open_replay(request.config) as (config, store):
            template = ChatTemplate.load(Path(config.model.path), config.model.chat_template)
            counts = ExportCounts(request.run or config.run.name)
            episodes = _episodes(store, template, request, counts)
            write_dataset(partial / "data", map(_row, episodes))
        _require_any(counts, request)
        write_card(partial / "README.md", counts)
        partial.rename(request.out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    written = _count(counts.total, counts)
    unread = f"; {counts.unread} of them without messages: {UNREAD}" if counts.unread else ""
    return f"{written} in {request.out}{unread}"


def export_sft(request: ExportRequest) -> str:
    """Write a line of messages for each episode; return the message to print.

    Episodes whose messages cannot be read back are left out. Raises StoreError.
    """
    partial = _partial(request.out)
    try:
        with (
            open_replay(request.config) as (config, store),
            partial.open("w", encoding="utf-8") as file,
        ):
            template = ChatTemplate.load(Path(config.model.path), config.model.chat_template)
            counts = ExportCounts(request.run or config.run.name)
            for each in _episodes(store, template, request, counts):
                if each.messages is not None:
                    file.write(json.dumps(_line(each), ensure_ascii=False) + "\n")
        _require_any(counts, request)
        if counts.unread == counts.total:
            raise StoreError(
                f"nothing to write: of all {counts.total} episodes, {UNREAD}",
                hint="export them with --dataset, which has the tokens",
            )
        partial.rename(request.out)
    finally:
        partial.unlink(missing_ok=True)
    written = _count(counts.total - counts.unread, counts)
    left_out = f"; {counts.unread} left out: {UNREAD}" if counts.unread else ""
    return f"{written} in {request.out}{left_out}"


def _episodes(
    store: Store, template: ChatTemplate, request: ExportRequest, counts: ExportCounts
) -> Iterator[ExportedEpisode]:
    """Yield the finished episodes in the order of their end, and count them."""
    with store.read() as session:
        run_id = runs.require_run(session, counts.run).run_id
        names = recordings.finished_episodes(session, run_id, request.task, request.min_reward)
    if request.only is not None:
        names = [name for name in names if name in request.only]
    for first in range(0, len(names), AT_ONCE):
        some = names[first : first + AT_ONCE]
        with store.read() as session:
            updates = episode_updates(session, some)
            found = [recordings.read_recording(session, name) for name in some]
        for recording in found:
            try:
                body = body_of(recording.wire, recording.sha256)
            except MessageError:
                counts.missing += 1
                continue
            messages = read_messages(body, template)
            counts.episodes[body.task] += 1
            counts.rewards[body.task] += body.reward
            counts.versions |= {policy.version for policy in body.policies}
            counts.unread += messages is None
            yield ExportedEpisode(body, messages, updates.get(body.episode_id))


def _row(each: ExportedEpisode) -> dict[str, Any]:
    body = each.body
    update = each.update if each.update and each.update.is_live else None
    return {
        "episode_id": body.episode_id,
        "run_id": body.run_id,
        "group_id": body.group_id,
        "task": body.task,
        "item_id": body.item_id,
        "status": str(body.status),
        "reward": body.reward,
        "score": body.score,
        "advantage": update.advantage if update else None,
        "trained_version": update.version if update else None,
        "messages": None if each.messages is None else [_plain(one) for one in each.messages],
        "token_ids": body.tokens(),
        "loss_mask": body.mask(),
        "logprobs": body.behaviour(),
        "policy_index": body.sampled_by(),
        "policies": msgspec.to_builtins(body.policies),
        "steps": [
            {"policy_index": step.policy_index, "start": step.start, "end": step.end}
            | {"temperature": step.temperature, "finish_reason": step.finish_reason}
            | {"reward": reward, "judge_score": score}
            for step, reward, score in zip(
                body.steps, body.step_rewards(), body.judge_scores(), strict=True
            )
        ],
        "metrics": json.dumps(body.metrics),
    }


def _line(each: ExportedEpisode) -> dict[str, Any]:
    body = each.body
    return {
        "messages": [_plain(one) for one in each.messages or ()],
        "episode_id": body.episode_id,
        "task": body.task,
        "item_id": body.item_id,
        "reward": body.reward,
        "score": body.score,
    }


def _plain(message: Message) -> dict[str, str]:
    plain = {"role": message.role, "content": message.content}
    return plain | {"name": message.name} if message.name else plain


def _partial(out: Path) -> Path:
    """The name under which OUT is written. Raises StoreError if OUT exists."""
    if out.exists():
        raise StoreError(f"{out} exists already", hint="choose a name that does not exist")
    partial = out.parent / f".{out.name}.partial"
    if partial.is_dir():  # what a killed export left
        shutil.rmtree(partial)
    partial.unlink(missing_ok=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    return partial


def _require_any(counts: ExportCounts, request: ExportRequest) -> None:
    if not counts.total:
        which = f" of task {request.task}" if request.task else ""
        least = "" if request.min_reward is None else f" with a reward of {request.min_reward:g}"
        missing = f"; {counts.missing} bodies are not stored" if counts.missing else ""
        raise StoreError(
            f"run {counts.run} has no finished episode{which}{least}{missing}",
            hint="see `agentrl episodes CONFIG --state failed`",
        )


def _count(written: int, counts: ExportCounts) -> str:
    missing = f" ({counts.missing} more are not stored)" if counts.missing else ""
    return f"{written} episodes{missing}"
