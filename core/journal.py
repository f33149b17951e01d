"""One sampled step as the journal keeps it, and the decoding of its body.

The steps of an attempt, in order, are its conversation: `context` and `token_ids` of each, one
after the other, are the tokens of its trajectory up to the last sampled one.
"""

import math

import msgspec
import numpy as np

from agentrl.core.errors import MessageError
from agentrl.core.trajectory import VERSION, PolicyRef, StepRecord, Wire


class SampledStep(Wire, frozen=True, kw_only=True, tag="SampledStep"):
    """One policy call, before its action takes effect.

    `context`: int32 tokens between the previous step and this one, which hold the answer to the
    previous step, or the first prompt. `token_ids` int32 and `logprobs` float32: one entry for each
    sampled token. `step`: without the call, the answer and the time of the environment, which come
    after it; its `policy_index` means nothing here.
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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SampledStep)


def encode_step(step: SampledStep) -> bytes:
    return _encoder.encode(step)


def decode_step(body: bytes) -> SampledStep:
    """Decode the body of a row. Raises MessageError, also if its arrays disagree with its span."""
    try:
        found = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise MessageError(f"the recorded step cannot be decoded: {error}") from error
    if found.v != VERSION:
        raise MessageError(f"the recorded step has version {found.v}, not {VERSION}")
    size = 4 * (found.step.end - found.step.start)
    if not size == len(found.token_ids) == len(found.logprobs) or len(found.context) % 4:
        raise MessageError("the arrays of the recorded step disagree with its span")
    if not all(map(math.isfinite, found.behaviour())):
        raise MessageError("a log-probability of the recorded step is not finite")
    return found
