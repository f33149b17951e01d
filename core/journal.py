"""What the journal keeps of an attempt, and the decoding of the bodies.

Its sampled steps, in order, are its conversation: `context` and `token_ids` of each step of a
branch, one after the other, are the tokens of that branch up to the last sampled one. An episode
whose last action has taken effect and that a judge has yet to score is a record of its own, and
the last one.
"""

import math

import msgspec
import numpy as np

from agentrl.core.errors import MessageError
from agentrl.core.trajectory import PolicyRef, StepRecord, Trajectory
from agentrl.core.trajectory_body import VERSION, Wire, check


class SampledStep(Wire, frozen=True, kw_only=True, tag="SampledStep"):
    """One policy call, before its action takes effect.

    `context`: int32 tokens between the previous step of its branch and this one, which hold the
    answer to the previous step, or all that the branch begins with. `token_ids` int32 and
    `logprobs` float32: one entry for each sampled token. `step`: without the call, the answer and
    the time of the environment, which come after it; its `policy_index` means nothing here.
    """

    step: StepRecord
    policy: PolicyRef
    context: bytes
    token_ids: bytes
    logprobs: bytes

    def tokens(self) -> list[int]:
        found: list[int] = np.frombuffer(self.token_ids, dtype="<i4").tolist()
        return found

    def behaviour(self) -> list[float]:
        found: list[float] = np.frombuffer(self.logprobs, dtype="<f4").tolist()
        return found


class UnjudgedEpisode(Wire, frozen=True, kw_only=True, tag="UnjudgedEpisode"):
    """An episode whose judge has not scored it. `trajectory`: with the environment's reward.

    `messages`: role and content of each message of the last branch, an assistant's as the policy
    wrote it. Empty without a judge.
    """

    trajectory: Trajectory
    messages: tuple[dict[str, str], ...] = ()


Record = SampledStep | UnjudgedEpisode

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    return _encoder.encode(record)


def decode_record(body: bytes) -> Record:
    """Decode the body of a row. Raises MessageError, also if its arrays disagree with its spans."""
    try:
        found = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise MessageError(f"the recorded step cannot be decoded: {error}") from error
    if found.v != VERSION:
        raise MessageError(f"the recorded step has version {found.v}, not {VERSION}")
    if isinstance(found, UnjudgedEpisode):
        check(found.trajectory)
        return found
    size = 4 * (found.step.end - found.step.start)
    if not size == len(found.token_ids) == len(found.logprobs) or len(found.context) % 4:
        raise MessageError(
            "the recorded step has different numbers of tokens, token ids and log-probabilities"
        )
    if not all(map(math.isfinite, found.behaviour())):
        raise MessageError("a log-probability of the recorded step is not finite")
    return found
