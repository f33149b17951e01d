"""A finished episode as tokens, and the decoding of its body.

A body is one byte (0 plain, 1 zstd) and the MessagePack of one tagged struct: `EpisodeFinished`, or
another message (`broker/messages.py`). Unknown tags, versions and fields raise MessageError.
Token arrays are encoded as little-endian bytes and read without a copy by `numpy.frombuffer`.
"""

import hashlib
import math
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from agentrl.core.errors import MessageError
from agentrl.core.types import ABORT, Status

VERSION = 1
MAX_BYTES = 128 * 1024 * 1024  # of a decoded body


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """Base of all messages. `v`: the version of the encoding."""

    v: int = VERSION


class BranchPoint(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """Where the branch of a step begins in the trajectory.

    `forked_from`: of a branch's first step: the step whose end the branch continues; None: it
    begins a conversation.
    """

    begin: int
    forked_from: int | None = None


class StepRecord(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """One policy call and the environment's answer.

    `start`, `end`: span of the sampled tokens in the trajectory. `requested_at`: seconds since the
    epoch on the database's clock. `call`: the parsed calls as JSON text. `answer`: the
    environment's answer. `redrawn`: policies that refused or died before this one answered. A step
    that ends as `abort` has no call: the next step continues the same turn. `reward`: of its turn,
    if the turn did not end the episode; read it with `Trajectory.step_rewards`.

    `branch`: None: the first one. `trained`: False: a rule of the task leaves it out of the loss.

    From sixteen fields on msgspec encodes, and hashes, those without a value otherwise.
    """

    policy_index: int
    start: int
    end: int
    prompt_tokens: int
    temperature: float
    requested_at: float
    policy_s: float
    env_s: float
    finish_reason: str
    call: str
    answer: str
    redrawn: int = 0
    reward: float = 0.0
    branch: BranchPoint | None = None
    trained: bool = True

    @property
    def context(self) -> int:
        """Return where its prompt begins; the steps of one context are a branch."""
        return self.branch.begin if self.branch else 0

    @property
    def forked_from(self) -> int | None:
        return self.branch.forked_from if self.branch else None


class PolicyRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A policy that sampled a part of a trajectory. `trainable`: its log-probabilities are usable.

    Tokens of other policies are masked: loss mask and log-probability are 0 in their spans.
    """

    checkpoint_id: str
    version: int
    track: str
    server_id: str
    trainable: bool = True

    @property
    def masked(self) -> bool:
        return not self.trainable


class Judgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The score that a judge gave an episode. `judge`: the model's name, or the function's.

    `reply`: of the model; empty for a function. `environment_reward`: of the episode before it.
    """

    judge: str
    score: float
    reply: str
    environment_reward: float


class Trajectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A finished episode as tokens. Arrays have one entry per token, all of the same length T.

    They hold its branches one after the other, each with its whole context, and `steps` are in the
    order of their tokens. A branch that continues a step repeats the tokens up to the step's end,
    with the mask 0: each token that was sampled is in the loss once.

    `token_ids` int32, `loss_mask` uint8 (1 = sampled by a trainable policy), `logprobs` float32
    (natural log, behaviour, 0 where the mask is 0), `policy_index` uint8 into `policies` (0 outside
    the steps' spans). `judgement`: UNSET without a judge, so that
    it is neither encoded nor hashed.
    """

    run_id: str
    group_id: str
    episode_id: str
    member: int
    attempt: int
    fence: int
    task: str
    item_id: str
    status: Status
    reward: float
    score: float
    token_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    policy_index: bytes
    policies: tuple[PolicyRef, ...]
    steps: tuple[StepRecord, ...]
    started_at: float
    finished_at: float
    metrics: dict[str, float] = {}
    judgement: Judgement | msgspec.UnsetType = msgspec.UNSET

    @property
    def environment_reward(self) -> float:
        """Return the reward without the judge's."""
        return self.judgement.environment_reward if self.judgement else self.reward

    def __len__(self) -> int:
        return len(self.loss_mask)

    @property
    def turns(self) -> int:
        """Return the number of turns with an answer; an aborted step is not a turn."""
        return sum(step.finish_reason != ABORT for step in self.steps)

    @property
    def has_branches(self) -> bool:
        """Return whether it has several branches."""
        return any(step.context for step in self.steps)

    @property
    def last_step(self) -> int:
        """Return the number of the step that ended the episode. Raises IndexError without steps."""
        if not self.has_branches:
            return range(len(self.steps))[-1]
        return max(range(len(self.steps)), key=lambda n: (self.steps[n].requested_at, n))

    def step_rewards(self) -> list[float]:
        """Return the reward of each step; their sum is the episode's.

        The last step has what the others leave: all of it in a body without rewards of steps.
        """
        rewards = [step.reward for step in self.steps]
        if rewards:
            rewards[self.last_step] += self.reward - math.fsum(rewards)
        return rewards

    def branch_lengths(self) -> list[int]:
        """Return the number of tokens of each branch, in order; at least one."""
        begins = sorted({0, *(step.context for step in self.steps)})
        return [end - begin for begin, end in pairwise([*begins, len(self)])]

    def parents(self) -> list[int | None]:
        """Return of each step the one that it follows; None: it begins a conversation."""
        steps = self.steps
        return [
            number - 1 if number and steps[number - 1].context == step.context else step.forked_from
            for number, step in enumerate(steps)
        ]

    @cached_property
    def sha256(self) -> str:
        """Its identity, whatever compressed it: hex SHA-256 of its MessagePack, taken once."""
        return hashlib.sha256(_encoder.encode(self)).hexdigest()

    def tokens(self) -> NDArray[np.int32]:
        return np.frombuffer(self.token_ids, dtype="<i4")

    def mask(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.loss_mask, dtype=np.uint8)

    def behaviour(self) -> NDArray[np.float32]:
        return np.frombuffer(self.logprobs, dtype="<f4")

    def sampled_by(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.policy_index, dtype=np.uint8)


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
    """Raise MessageError if arrays differ in length, spans or masks are wrong, or a number is not
    finite.
    """
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


def _check_numbers(trajectory: Trajectory, where: str) -> None:
    if not (math.isfinite(trajectory.reward) and math.isfinite(trajectory.score)):
        raise MessageError(f"{where}: the reward or the score is not finite")
    if not all(math.isfinite(step.reward) for step in trajectory.steps):
        raise MessageError(f"{where}: the reward of a step is not finite")
    judgement = trajectory.judgement
    if judgement and not math.isfinite(judgement.score + judgement.environment_reward):
        raise MessageError(f"{where}: the judgement is not finite")
    if not np.isfinite(trajectory.behaviour()).all():
        raise MessageError(f"{where}: a log-probability is not finite")
    if trajectory.behaviour()[trajectory.mask() == 0].any():
        raise MessageError(f"{where}: a token has a log-probability although its loss mask is 0")


def _plain(wire: bytes) -> Any:
    if wire[0] == 0:
        return memoryview(wire)[1:]
    if wire[0] != 1:
        raise MessageError(f"unknown message encoding {wire[0]}")
    size = zstandard.frame_content_size(wire[1:])
    if size < 0 or size > MAX_BYTES:
        raise MessageError(f"the message body has {size} bytes, the limit is {MAX_BYTES}")
    return zstandard.ZstdDecompressor().decompress(wire[1:], max_output_size=MAX_BYTES)
