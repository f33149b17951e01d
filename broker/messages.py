"""The messages: frozen, closed, versioned structs in MessagePack, compressed with zstd if large.

Commands are imperative, events past tense. A finished episode and the decoding of bodies are in
`core/trajectory_body.py`, so readers of stored bodies do not need the other messages.
"""

import msgspec
import zstandard

from agentrl.core.errors import MessageRefused
from agentrl.core.trajectory_body import MAX_BYTES, EpisodeFinished, Wire, decode_wire

__all__ = [
    "CheckpointPublished",
    "EpisodeFinished",
    "Message",
    "PoolChanged",
    "RunEpisode",
    "decode",
    "encode",
]


class RunEpisode(Wire, frozen=True, kw_only=True, tag="RunEpisode"):
    """Command to a worker, through Celery as JSON. A stale fence makes it a no-op."""

    run_id: str
    episode_id: str
    fence: int


class CheckpointPublished(Wire, frozen=True, kw_only=True, tag="CheckpointPublished"):
    """A wake-up: the registry has a new checkpoint. Losing it only delays."""

    run_id: str
    version: int
    checkpoint_id: str


class PoolChanged(Wire, frozen=True, kw_only=True, tag="PoolChanged"):
    """A wake-up: the registry has another set of live policies. Losing it only delays."""

    run_id: str


Message = RunEpisode | EpisodeFinished | CheckpointPublished | PoolChanged

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message, *, compress_above: int = 4096) -> bytes:
    """Encode a message. Raises MessageRefused if `decode` would not accept it."""
    body = _encoder.encode(message)
    if len(body) > MAX_BYTES:
        raise MessageRefused(
            f"the message body has {len(body)} bytes, the limit is {MAX_BYTES}",
            hint="lower sampling.max_tokens, or let the environment return fewer metrics",
        )
    if len(body) > compress_above:
        return b"\x01" + zstandard.ZstdCompressor(level=1).compress(body)
    return b"\x00" + body


def decode(wire: bytes) -> Message:
    """Decode a message. Raises MessageError."""
    return decode_wire(wire, _decoder)
