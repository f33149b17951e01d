"""The body of a trajectory: how it is encoded and decoded, and what makes it valid.

A body is one byte (0 plain, 1 zstd) and the MessagePack of one tagged struct: `EpisodeFinished`, or
another message (`broker/messages.py`). Unknown tags, versions and fields raise MessageError.
"""

import math
from typing import Any, TypeVar

import msgspec
import numpy as np
import zstandard

from agentrl.core.errors import MessageError
from agentrl.core.trajectory import Trajectory

VERSION = 1
MAX_BYTES = 128 * 1024 * 1024  # of a decoded body


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """Base of all messages. `v`: the version of the encoding."""

    v: int = VERSION


class EpisodeFinished(Wire, frozen=True, kw_only=True, tag="EpisodeFinished"):
    """The result of a worker, published with a confirm before its row becomes finished."""

    trajectory: Trajectory


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder["EpisodeFinished"] = msgspec.msgpack.Decoder(EpisodeFinished)

AnyWire = TypeVar("AnyWire", bound=Wire)


def body_of(wire: bytes, sha256: str) -> Trajectory:
    """Decode the trajectory of a stored body. Raises MessageError if the hash differs."""
    trajectory = decode_wire(wire, _decoder).trajectory
    found = trajectory.sha256
    if found != sha256:
        raise MessageError(f"the SHA-256 of the body is {found[:12]}…, its row says {sha256[:12]}…")
    return trajectory


def decode_as_received(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory as readers of its body will see it; its hash is computed from this.

    Raises MessageError if it cannot be decoded.
    """
    wire = b"\x00" + _encoder.encode(EpisodeFinished(trajectory=trajectory))
    return decode_wire(wire, _decoder).trajectory


def decode_wire(wire: bytes, decoder: "msgspec.msgpack.Decoder[AnyWire]") -> AnyWire:
    """Decode a message. Raises MessageError."""
    if not wire:
        raise MessageError("empty message body")
    try:
        message = decoder.decode(_plain(wire))
    except (msgspec.MsgspecError, zstandard.ZstdError, UnicodeError, RecursionError) as error:
        raise MessageError(f"the message cannot be decoded: {error}") from error
    if message.v != VERSION:
        raise MessageError(
            f"the message has version {message.v}, this process understands version {VERSION}"
        )
    if isinstance(message, EpisodeFinished):
        check(message.trajectory)
    return message


def check(trajectory: Trajectory) -> None:
    """Raise MessageError for wrong lengths, spans or masks, and for a number that is not finite."""
    length = len(trajectory.loss_mask)
    sizes: dict[str, tuple[bytes, int]] = {
        "token_ids": (trajectory.token_ids, 4 * length),
        "logprobs": (trajectory.logprobs, 4 * length),
        "policy_index": (trajectory.policy_index, length),
    }
    where = f"trajectory of episode {trajectory.episode_id}"
    for name, (array, size) in sizes.items():
        if len(array) != size:
            raise MessageError(f"{where}: {name} has {len(array)} bytes instead of {size}")
    mask = trajectory.mask()
    covered = np.zeros(length, dtype=np.uint8)
    for number, step in enumerate(trajectory.steps):
        if not 0 <= step.start <= step.end <= length:
            raise MessageError(
                f"{where}: step {number} spans tokens {step.start}–{step.end} of {length}"
            )
        if not 0 <= step.policy_index < len(trajectory.policies):
            raise MessageError(
                f"{where}: step {number} names policy {step.policy_index}, which is not listed"
            )
        if (trajectory.sampled_by()[step.start : step.end] != step.policy_index).any():
            raise MessageError(f"{where}: policy_index disagrees with step {number}")
        trainable = trajectory.policies[step.policy_index].trainable
        covered[step.start : step.end] = trainable and step.trained
    if not np.array_equal(covered, mask):
        raise MessageError(f"{where}: loss_mask is not the union of the trainable steps' spans")
    _check_branches(trajectory, where)
    _check_branch_rewards(trajectory, where)
    _check_numbers(trajectory, where)


def _check_branches(trajectory: Trajectory, where: str) -> None:
    """Raise MessageError unless branches lie one after the other and repeat what they continue."""
    steps, tokens = trajectory.steps, trajectory.tokens()
    for number, step in enumerate(steps):
        before = steps[number - 1] if number else None
        if before is not None and step.context == before.context:
            if step.forked_from is not None:
                raise MessageError(f"{where}: step {number} forks within its branch")
            continue
        if not (before.end if before else 0) <= step.context <= step.start:
            raise MessageError(f"{where}: the branch of step {number} begins at {step.context}")
        if step.forked_from is None:
            continue
        if not 0 <= step.forked_from < number:
            raise MessageError(f"{where}: step {number} forks from step {step.forked_from}")
        parent = steps[step.forked_from]
        shared = tokens[parent.context : parent.end]
        repeated = tokens[step.context : min(step.start, step.context + shared.size)]
        if not np.array_equal(repeated, shared):
            raise MessageError(f"{where}: step {number} does not continue step {step.forked_from}")


def _check_branch_rewards(trajectory: Trajectory, where: str) -> None:
    """Raise MessageError unless each rewarded branch ends with a step of its own."""
    ends = [each.step for each in trajectory.branch_rewards or ()]
    if len(set(ends)) < len(ends) or not all(0 <= end < len(trajectory.steps) for end in ends):
        raise MessageError(f"{where}: branches with rewards end with steps {ends}")


def _check_numbers(trajectory: Trajectory, where: str) -> None:
    if not (math.isfinite(trajectory.reward) and math.isfinite(trajectory.score)):
        raise MessageError(f"{where}: the reward or the score is not finite")
    rewards = [each.reward for each in trajectory.steps]
    rewards += [each.reward for each in trajectory.branch_rewards or ()]
    if not all(map(math.isfinite, rewards)):
        raise MessageError(f"{where}: the reward of a step or a branch is not finite")
    _check_judgement(trajectory, where)
    if not np.isfinite(trajectory.behaviour()).all():
        raise MessageError(f"{where}: a log-probability is not finite")
    if trajectory.behaviour()[trajectory.mask() == 0].any():
        raise MessageError(f"{where}: a token has a log-probability although its loss mask is 0")


def _check_judgement(trajectory: Trajectory, where: str) -> None:
    """Raise MessageError unless its numbers are finite, and its scores of turns one for each."""
    judgement = trajectory.judgement
    if not judgement:
        return
    numbers = [judgement.score, judgement.environment_reward, *(judgement.turn_scores or ())]
    if not all(map(math.isfinite, numbers)):
        raise MessageError(f"{where}: the judgement is not finite")
    scores = judgement.turn_scores
    if isinstance(scores, tuple) and (trajectory.has_branches or len(scores) != trajectory.turns):
        raise MessageError(f"{where}: the judge gave {len(scores)} scores of turns")


def _plain(wire: bytes) -> Any:
    if wire[0] == 0:
        return memoryview(wire)[1:]
    if wire[0] != 1:
        raise MessageError(f"unknown message encoding {wire[0]}")
    size = zstandard.frame_content_size(wire[1:])
    if size < 0 or size > MAX_BYTES:
        raise MessageError(f"the message body has {size} bytes, the limit is {MAX_BYTES}")
    return zstandard.ZstdDecompressor().decompress(wire[1:], max_output_size=MAX_BYTES)
