"""What text is a token? Read from a checkpoint's `tokenizer.json`, without the library behind it.

Only decoding, and only for people to read: byte-level vocabularies (GPT-2, Llama 3, Qwen) as bytes,
those that mark spaces (`▁`, SentencePiece) as text. Nothing is ever encoded.
"""

import codecs
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

FILE = "tokenizer.json"
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Pieces by id. `special`: tokens that are not text, such as the end of a turn."""

    pieces: Mapping[int, bytes]
    special: frozenset[int]

    def texts(self, tokens: Sequence[int]) -> list[str]:
        """Return [T] the text of each token; an unknown one as `⟨id⟩`.

        A character made of several tokens appears at the last one; invalid bytes become `�`.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        parts = (self.pieces.get(token, f"⟨{token}⟩".encode()) for token in tokens)
        return [decoder.decode(part) for part in parts]


NONE = Vocabulary({}, frozenset())


def find(directories: Sequence[str]) -> Path | None:
    """Find the first readable `tokenizer.json` that is not too large; None: there is none."""
    for directory in directories:
        path = Path(directory.removeprefix("file://")) / FILE
        try:
            if path.stat().st_size <= MAX_BYTES:
                return path
        except OSError:
            continue
    return None


def vocabulary_of(path: Path) -> Vocabulary:
    """Return the vocabulary of a tokenizer file; the last four are cached."""
    return _read_cached(path, path.stat().st_mtime)


@lru_cache(maxsize=4)
def _read_cached(path: Path, changed: float) -> Vocabulary:  # noqa: ARG001 - part of the key
    return read(path)


def read(path: Path) -> Vocabulary:
    """Read the vocabulary of a tokenizer file; empty if its format is unknown."""
    try:
        written = json.loads(path.read_bytes())
        model = written["model"]["vocab"]
        added = written.get("added_tokens", [])
        words = model.items() if isinstance(model, dict) else _rank_pieces(model)
        as_bytes = _is_byte_level(written)
        pieces = {int(token): _piece(word, as_bytes) for word, token in words}
        pieces |= {int(each["id"]): str(each["content"]).encode() for each in added}
        special = frozenset(int(each["id"]) for each in added if each.get("special"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return NONE
    return Vocabulary(pieces, special)


def _rank_pieces(model: Any) -> list[tuple[str, int]]:
    """Return (piece, id) of a Unigram model, whose vocabulary is a list of (piece, score)."""
    return [(piece, token) for token, (piece, _score) in enumerate(model)]


def _is_byte_level(written: Any) -> bool:
    decoder = written.get("decoder") or {}
    parts = [decoder, *decoder.get("decoders", [])]
    return any(part.get("type") == "ByteLevel" for part in parts)


def _piece(word: str, as_bytes: bool) -> bytes:
    if as_bytes:
        if all(letter in BYTES for letter in word):
            return bytes(BYTES[letter] for letter in word)
        return word.encode()
    if len(word) == 6 and word.startswith("<0x"):  # byte fallback: <0x0A>
        return bytes.fromhex(word[3:5])
    return word.replace("▁", " ").encode()


def _bytes() -> dict[str, int]:
    """Return GPT-2's mapping of characters to bytes; non-printable bytes use U+0100 and up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in set(plain))
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}


BYTES = _bytes()
