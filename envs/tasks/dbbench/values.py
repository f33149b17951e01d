"""How MySQL reads, compares, orders and writes values, where SQLite differs.

Numbers are read from the head of a text; texts compare without regard to case and accents, in the
order of the Unicode collation algorithm as far as its table is held here. Standard library only.
"""

from __future__ import annotations

import math
import re
import unicodedata
from functools import lru_cache

Value = str | int | float | None

_NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.ASCII)
_WHOLE = re.compile(r"\s*([-+]?\d+)", re.ASCII)
CACHED = 64  # characters of a text whose key is kept
_LONG = 15  # digits before a number is written with an exponent
# In the order of the default table: signs before digits, digits before letters.
_SIGNS = (
    "\t\n\x0b\x0c\r `´^¯¨¸_\xad-‐‒–—―,;:!¡?¿.·'‘’‚‛‹›\"“”„"
    "«»()[]{}§¶©®@*/⁄\\&#%‰†‡•‧′‵※°+±÷×<=>¬|¦~−→←↑↓↔∞■□▲▼◆◇○●★☆♠♣♥♦✓¤¢$£¥€"
)
_RARE = chr(0x1E0)  # before signs in no table
_DIGIT, _LETTER = 0x1F0, 0x200  # below them there is room for all signs, above for other scripts
_LETTERS = {"æ": "ae", "œ": "oe", "ø": "o", "ð": "d", "đ": "d", "ħ": "h", "ł": "l"}


def _weights() -> dict[int, str | None]:
    weights: dict[str, str | None] = {
        chr(code): None for code in [*range(0x20), *range(0x7F, 0xA0)]
    }
    weights |= {sign: chr(place) for place, sign in enumerate(_SIGNS, 1)}
    weights |= {digit: chr(_DIGIT + place) for place, digit in enumerate("0123456789")}
    weights |= {chr(97 + place): chr(_LETTER + place) for place in range(26)}
    for letter, others in _LETTERS.items():
        weights[letter] = "".join(weights[other] or "" for other in others)
    weights["\xa0"], weights["‑"] = weights[" "], weights["‐"]
    return str.maketrans(weights)


_WEIGHTS = _weights()


def number(value: Value) -> int | float | None:
    """A text counts as the number at its head, else as 0; a number read from text is a double."""
    if not isinstance(value, str):
        return value
    found = _NUMBER.match(value)
    return float(found[1]) if found else 0.0


def whole(value: Value) -> int | None:
    """As CAST(… AS SIGNED): digits at the head of a text, a number rounded half away from 0."""
    if isinstance(value, str):
        found = _WHOLE.match(value)
        return int(found[1]) if found else 0
    return value if value is None or isinstance(value, int) else int(rounded(value, 0))


def fitting(value: int) -> int | float:
    """A whole number that SQLite cannot hold is a double."""
    return value if -(2**63) <= value < 2**63 else float(value)


def rounded(value: float, digits: int) -> float:
    """Half away from zero, as MySQL rounds what is exact."""
    scale = 10.0 ** min(max(digits, -300), 300)
    shifted = abs(value) * scale
    if not shifted < 2**52:
        return value
    near = float(int(shifted + 0.5))
    return (near if value >= 0 else -near) / scale


def text(value: Value) -> str | None:
    """As MySQL writes it: a double without a needless fraction or exponent."""
    if not isinstance(value, float):
        return value if value is None else str(value)
    if not math.isfinite(value):
        return None
    digits = repr(value)
    mantissa, _, exponent = digits.partition("e")
    mantissa = mantissa.removesuffix(".0")
    if exponent:
        power = int(exponent)
        if -_LONG <= power < 0:
            return f"{value:.{len(mantissa.lstrip('-').replace('.', '')) - 1 - power}f}"
        return f"{mantissa}e{power}"
    bare = mantissa.lstrip("-")
    if "." in bare or len(bare) <= _LONG:
        return mantissa
    return _with_exponent(bare, "-" if mantissa != bare else "")


def _with_exponent(digits: str, sign: str) -> str:
    kept = digits.rstrip("0")
    fraction = f".{kept[1:]}" if len(kept) > 1 else ""
    return f"{sign}{kept[0]}{fraction}e{len(digits) - 1}"


def key(word: str) -> str:
    """Texts are equal, and ordered, as their keys are."""
    return _kept(word) if len(word) <= CACHED else _key(word)


def _key(word: str) -> str:
    if word.isascii():
        return word.lower().translate(_WEIGHTS)
    plain = unicodedata.normalize("NFKD", word).casefold().translate(_WEIGHTS)
    return "".join(map(_weight, plain))


_kept = lru_cache(maxsize=8192)(_key)


def _weight(letter: str) -> str:
    """Of what is in no table: nothing for marks of letters, before digits for rare signs."""
    if ord(letter) < 0x250 or letter.isalnum():
        return letter
    rare = unicodedata.category(letter)[0] in "PSZ"
    return _RARE + letter if rare else "" if unicodedata.combining(letter) else letter


def collate(left: str, right: str) -> int:
    """-1, 0 or 1."""
    one, other = key(left), key(right)
    return (one > other) - (one < other)


def compare(left: Value, right: Value) -> int | None:
    """-1, 0 or 1; None with NULL. Two texts compare as texts, all else as numbers."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return collate(left, right)
    one, other = number(left) or 0, number(right) or 0
    return (one > other) - (one < other)
