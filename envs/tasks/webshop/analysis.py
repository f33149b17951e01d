"""Text to index terms as Lucene's English analysis does it.

Words by Unicode's word boundaries (UAX #29), as Lucene's StandardTokenizer draws them; possessives
stripped; lower case; stop words dropped; Porter's stems. What UAX #29 calls Complex_Context
(Thai, Khmer, …) is kept in runs.
"""

import re
import unicodedata
from functools import cache
from itertools import pairwise

from agentrl.envs.tasks.webshop.porter import stem

_STOP_WORDS_TEXT = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS_TEXT.split())
MAX_LENGTH = 255  # characters of a token; longer ones are cut in pieces

_LETTERS_TOO = (  # by word boundary, though no letters by category
    "\u02c2-\u02c5\u02d2-\u02d7\u02de\u02df\u02ed\u02ef-\u02ff\u055b\u055c\u055e"
    "\u05f3\u24b6-\u24e9\ua720\ua721\ua789\ua78a\uab5b\U0001f130-\U0001f149"
    "\U0001f150-\U0001f169\U0001f170-\U0001f189"
)
_SIMPLE_LOWER = str.maketrans("\u0130\u03a3", "i\u03c3")  # character by character, as Java does
_MID_LETTER = ":·\u0387\u05f4\u2027\ufe13\ufe55\uff1a"
_MID_NUM = ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"
_MID_BOTH = ".'\u2018\u2019\u2024\ufe52\uff07\uff0e"
_JOINERS = "_\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f"
_ALONE = (  # ideographs and hiragana: each character is a token
    "\u2e80-\u2e99\u2e9b-\u2ef3\u2f00-\u2fd5\u3007\u3021-\u3029\u3038-\u303a\u3400-\u4db5"
    "\u4e00-\u9fef\uf900-\ufa6d\ufa70-\ufad9\U00020000-\U0002ebe0\U0002f800-\U0002fa1d"
    "\u3041-\u3096\u309d-\u309f\U0001b001-\U0001b11e\U0001b150-\U0001b152\U0001f200"
)
_KATAKANA = (
    "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u32d0-\u32fe\u3300-\u3357"
    "\uff66-\uff9d\U0001b000"
)
_COMPLEX = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ec4\u0ec6-\u0ecd\u0edc-\u0edf\u1000-\u103f\u1050-\u108f"
    "\u109a-\u109f\u1780-\u17d3\u17d7\u17dc\u17dd\u1950-\u19df\u1a20-\u1aad\ua9e0-\ua9ef"
    "\ua9fa-\ua9fe\uaa60-\uaac2\uaadb-\uaadf"
)
_PICTURES = (  # Extended_Pictographic
    "©®\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf"
    "\u23e9-\u23f3\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605"
    "\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733"
    "\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0"
    "\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e\U0001f17f"
    "\U0001f18e\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f"
    "\U0001f232-\U0001f23a\U0001f23c-\U0001f23f\U0001f249-\U0001f3fa\U0001f400-\U0001f53d"
    "\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff"
    "\U0001f80c-\U0001f80f\U0001f848-\U0001f84f\U0001f85a-\U0001f85f\U0001f888-\U0001f88f"
    "\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001fffd"
)
_FLAGS = "\U0001f1e6-\U0001f1ff"  # a pair of regional indicators
_ASCII = re.compile(
    r"_*[a-z0-9]+(?:[a-z0-9_]+|(?<=[a-z])[:.'](?=[a-z])|(?<=[0-9])[,;.'](?=[0-9]))*", re.I
)


def terms(text: str) -> list[str]:
    """The index terms of a text, in order; one that occurs twice is there twice."""
    return [term for word in words(text) if (term := term_of(word))]


def words(text: str) -> list[str]:
    """The tokens of a text, as written."""
    found = (_ASCII if text.isascii() else _unicode()).findall(text)
    if len(text) <= MAX_LENGTH or max(map(len, found), default=0) <= MAX_LENGTH:
        return found
    return [
        word[start : start + MAX_LENGTH]
        for word in found
        for start in range(0, len(word), MAX_LENGTH)
    ]


def term_of(word: str) -> str:
    """The index term of a token; empty for a stop word."""
    if len(word) > 1 and word[-1] in "sS" and word[-2] in "'\u2019\uff07":
        word = word[:-2]
    word = (word if word.isascii() else word.translate(_SIMPLE_LOWER)).lower()
    return "" if word in STOP_WORDS else stem(word)


@cache
def _unicode() -> re.Pattern[str]:
    """The pattern of tokens in any text. Built when first needed: it reads all of two planes."""
    kinds: dict[str, list[int]] = {"letter": [], "digit": [], "mark": []}
    other = re.compile(f"[{_ALONE}{_KATAKANA}{_COMPLEX}]")
    for code in range(0x20000):
        kind = _kind(chr(code))
        if kind and not (kind == "letter" and other.match(chr(code))):
            kinds[kind].append(code)
    letter, digit, mark = (_ranges(codes) for codes in kinds.values())
    letter += _LETTERS_TOO
    letters, digits, joiners = f"[{letter}]", f"[{digit}]", f"[{_JOINERS}]"
    any_mark = f"[{mark}\U000e0001-\U000e01ef]*"
    solid = f"(?:[{letter}{digit}{_JOINERS}]{any_mark})"
    middle = (
        f"(?<=[{letter}{mark}])[{_MID_LETTER}{_MID_BOTH}]{any_mark}(?={letters})"
        f"|(?<=[{digit}{mark}])[{_MID_NUM}{_MID_BOTH}]{any_mark}(?={digits})"
    )
    kana = f"(?:[{_KATAKANA}]{any_mark})"
    word = f"(?:{joiners}{any_mark})*[{letter}{digit}]{any_mark}(?:{solid}+|{middle})*"
    run = f"(?:{joiners}{any_mark})*{kana}(?:{kana}|{joiners}+(?={kana}))*"
    rest = f"[{_ALONE}]{any_mark}|[{_COMPLEX}](?:[{_COMPLEX}]{any_mark})*"
    picture = f"[{_PICTURES}]{any_mark}(?:(?<=\u200d)[{_PICTURES}]{any_mark})*|[{_FLAGS}]{{2}}"
    return re.compile(f"{word}|{run}|{rest}|{picture}")


def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if character in "\uff9e\uff9f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff":
        return "mark"
    if category[0] == "L" or category == "Nl":
        return "letter"
    if category[0] == "M" or (category == "Cf" and character != "\u200b"):
        return "mark"
    return "digit" if category == "Nd" or character == "\u066b" else ""  # codespell:ignore


def _ranges(codes: list[int]) -> str:
    """A class's inside: runs of code points."""
    edges = [
        (code, next_code)
        for code, next_code in zip([-2, *codes], [*codes, 0x110000], strict=True)
        if next_code != code + 1
    ]
    return "".join(f"\\U{start:08x}-\\U{end:08x}" for (_, start), (end, _) in pairwise(edges))
