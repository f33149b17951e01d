"""Porter's stemmer (Program 14, 1980) with Lucene's two departures: `bli` and `logi` are suffixes.

Every character that is not a vowel counts as a consonant, digits and marks too.
"""

from collections.abc import Callable
from itertools import pairwise

VOWELS = "aeiou"
LAST = frozenset("cdegilmnrstuy")  # letters that some suffix ends with

_STEP_2 = (
    *(("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize")),
    *(("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    *(("ization", "ize"), ("ation", "ate"), ("ator", "ate"), ("alism", "al"), ("iveness", "ive")),
    *(("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive")),
    *(("biliti", "ble"), ("logi", "log")),
)
_STEP_3 = (
    *(
        ("icate", "ic"),
        ("ative", ""),  # codespell:ignore
        ("alize", "al"),
        ("iciti", "ic"),
        ("ical", "ic"),
    ),
    *(("ful", ""), ("ness", "")),
)
_ENDS_2, _ENDS_3 = (tuple(suffix for suffix, _ in table) for table in (_STEP_2, _STEP_3))
_STEP_4 = (
    *(
        "al",
        "ance",
        "ence",
        "er",
        "ic",
        "able",
        "ible",
        "ant",
        "ement",
        "ment",  # codespell:ignore
        "ent",
    ),
    *("sion", "tion", "ou", "ism", "ate", "iti", "ous", "ive", "ize"),
)


def stem(word: str) -> str:
    """The stem of a lower-cased word; words of one or two characters stay."""
    if len(word) < 3 or word[-1] not in LAST:
        return word
    for step in _STEPS:
        word = step(word)
    return word


def _consonant(word: str, place: int) -> bool:
    if word[place] == "y":
        return place == 0 or not _consonant(word, place - 1)
    return word[place] not in VOWELS


def _measure(base: str) -> int:
    """How many times a vowel run is followed by a consonant run."""
    kinds = [_consonant(base, place) for place in range(len(base))]
    return sum(now and not before for before, now in pairwise(kinds))


def _vowel_in(base: str) -> bool:
    return not all(_consonant(base, place) for place in range(len(base)))


def _short(base: str) -> bool:
    """Consonant, vowel, consonant other than w, x and y."""
    if len(base) < 3 or base[-1] in "wxy":
        return False
    return (
        _consonant(base, len(base) - 1)
        and not _consonant(base, len(base) - 2)
        and _consonant(base, len(base) - 3)
    )


def _double(base: str) -> bool:
    return len(base) > 1 and base[-1] == base[-2] and _consonant(base, len(base) - 1)


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for suffix in ("ed", "ing"):
        base = word[: -len(suffix)]
        if word.endswith(suffix) and _vowel_in(base):
            return _restore_ending(base)
    return word


def _restore_ending(base: str) -> str:
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _double(base):
        return base if base[-1] in "lsz" else base[:-1]
    return base + "e" if _measure(base) == 1 and _short(base) else base


def _final_y(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and _vowel_in(word[:-1]) else word


def _replace(word: str, table: tuple[tuple[str, str], ...], ends: tuple[str, ...]) -> str:
    if not word.endswith(ends):
        return word
    for suffix, other in table:
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return base + other if _measure(base) else word
    return word


def _step_2(word: str) -> str:
    return _replace(word, _STEP_2, _ENDS_2)


def _step_3(word: str) -> str:
    return _replace(word, _STEP_3, _ENDS_3)


def _step_4(word: str) -> str:
    if not word.endswith(_STEP_4):
        return word
    suffix = next((suffix for suffix in _STEP_4 if word.endswith(suffix)), "")
    if suffix in ("sion", "tion"):
        suffix = "ion"
    base = word[: len(word) - len(suffix)]
    return base if _measure(base) > 1 else word


def _final_e(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


_STEPS: tuple[Callable[[str], str], ...] = (
    _plural,
    _past,
    _final_y,
    _step_2,
    _step_3,
    _step_4,
    _final_e,
)
