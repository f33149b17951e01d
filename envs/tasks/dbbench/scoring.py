"""The benchmark's scoring, without its faults: nothing is evaluated, empty is wrong."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence

TOLERANCE = 1e-2
CONCAT_LIMIT = 1024  # bytes; MySQL's group_concat_max_len, under which the gold hashes were made
NO_ROWS = "None"  # MySQL's hash of an empty table

_ABSENT = frozenset(
    {"", "none", "null", "undefined", "nan", "inf", "-inf", "infinity", "-infinity"}
)


def answers_match(answers: Sequence[str], gold: Sequence[str]) -> bool:
    """Compare one value as number within 1e-2 or as text, several as multisets."""
    if not any(answer.strip() for answer in answers):
        return False
    left, right = [normalise(value) for value in answers], [normalise(value) for value in gold]
    numbers = [_number(value) for value in (*left, *right)]
    if len(left) != len(right):
        return False
    if None in numbers:
        return Counter(left) == Counter(right)
    ordered = [number for number in numbers if number is not None]
    pairs = zip(sorted(ordered[: len(left)]), sorted(ordered[len(left) :]), strict=True)
    return all(abs(ours - theirs) <= TOLERANCE for ours, theirs in pairs)


def normalise(value: str) -> str:
    """Map empty values to 0; drop percent signs, thousands commas and outer quotes."""
    text = value.strip().strip("'\"").strip()
    text = text.removesuffix("%").strip().replace(",", "")
    return "0" if text.lower() in _ABSENT else text


def table_hash(rows: Iterable[Sequence[str | None]]) -> str:
    """Return the MD5 of the sorted, comma-joined row hashes; a row's is 5 hex digits of its MD5."""
    hashes = sorted(_md5(",".join(cell for cell in row if cell is not None))[:5] for row in rows)
    return _md5(",".join(hashes)[:CONCAT_LIMIT]) if hashes else NO_ROWS


def combined_hash(hashes: Iterable[str]) -> str:
    """Return the hash of several tables together; of one table, its own."""
    return "_".join(sorted(hashes))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(errors="replace"), usedforsecurity=False).hexdigest()


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
