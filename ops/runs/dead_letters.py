"""`agentrl dead`: lists, shows and requeues messages that could not be processed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from agentrl.broker.api import DeadLetter
from agentrl.broker.messages import EpisodeFinished, decode
from agentrl.core import config_loading
from agentrl.core.errors import BrokerError, ConfigError, MessageError
from agentrl.ops.runs.begin import OpenRun, open_run
from agentrl.ops.tables import console, plain

HEAD = 64  # bytes shown of a body that cannot be decoded


def show_all(path: Path, *, as_json: bool) -> None:
    """Print one line per dead letter, oldest first. Raises StoreError, BrokerError."""
    with _run(path) as run:
        letters = _letters(run)
    if as_json:
        print(msgspec.json.encode([_summary(letter) for letter in letters]).decode())
        return
    table = plain("letter", "queue", "bytes", "reason")
    for letter in letters:
        row = _summary(letter)
        table.add_row(row["letter"], row["queue"], str(row["bytes"]), row["reason"])
    console().print(table if letters else "no dead letters")


def show(path: Path, name: str, out: Path | None) -> None:
    """Print a dead letter; write its body to the file `out`. Raises ConfigError."""
    with _run(path) as run:
        letter = _find_letter(_letters(run), name)
    if out is not None:
        out.write_bytes(letter.body)
    print(msgspec.json.format(msgspec.json.encode(_summary(letter) | _inside(letter))).decode())


def requeue(path: Path, names: Sequence[str], *, every: bool) -> str:
    """Requeue dead letters, once each; return the message to print.

    Raises ConfigError if none or an unknown one is named.
    """
    if bool(names) == every:
        raise ConfigError("no dead letter was given", hint="give their names, or --all")
    with _run(path) as run:
        letters = _letters(run)
        chosen = {letter.letter_id for letter in letters}
        if not every:
            chosen = {_find_letter(letters, name).letter_id for name in names}
        back = run.broker.requeue(run.run_id, chosen)
    if back < len(chosen):
        raise BrokerError(
            f"only {back} of {len(chosen)} dead letters were requeued",
            hint="see `agentrl dead list CONFIG`",
        )
    return f"{back} requeued"


@contextmanager
def _run(path: Path) -> Iterator[OpenRun]:
    with open_run(config_loading.load(path)) as run:
        yield run


def _letters(run: OpenRun) -> list[DeadLetter]:
    """Return each dead letter once, however often it was rejected."""
    by_id = {letter.letter_id: letter for letter in run.broker.dead_letters(run.run_id)}
    return list(by_id.values())


def _find_letter(letters: Sequence[DeadLetter], name: str) -> DeadLetter:
    for letter in letters:
        if letter.letter_id == name:
            return letter
    raise ConfigError(f"there is no dead letter {name}", hint="see `agentrl dead list CONFIG`")


def _summary(letter: DeadLetter) -> dict[str, Any]:
    return {
        "letter": letter.letter_id,
        "queue": letter.queue,
        "bytes": len(letter.body),
        "reason": letter.reason,
    }


def _inside(letter: DeadLetter) -> dict[str, Any]:
    """Return what can be decoded of the body."""
    try:
        message = decode(letter.body)
    except MessageError as error:
        return {"undecodable": str(error), "head": letter.body[:HEAD].hex()}
    if not isinstance(message, EpisodeFinished):
        return {"message": msgspec.to_builtins(message)}
    body = message.trajectory
    fields = ("run_id", "group_id", "episode_id", "fence", "attempt", "task", "item_id")
    summary: dict[str, Any] = {name: getattr(body, name) for name in fields}
    summary |= {"status": body.status, "reward": body.reward, "tokens": len(body)}
    return {"message": {"type": "EpisodeFinished", **summary, "steps": len(body.steps)}}
