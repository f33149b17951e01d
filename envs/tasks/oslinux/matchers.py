"""Whether an answer is the right one: the benchmark's match and its standard matchers.

Differences from the benchmark's scripts: sizes may have decimals and any of their units, an empty
answer is `in` nothing and no answer is `containing` an empty target.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal

from agentrl.envs.tasks.oslinux.problem import Match

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B|Bytes?)?", re.ASCII | re.IGNORECASE)
_MAX_TEXT = 100  # characters of a number; a longer one is none


def matches(match: Match, answer: str) -> bool:
    """Apply the item's `match`: an equal answer, or a regex."""
    text = answer.strip() if match.strip else answer
    if match.answer is not None:
        return text == match.answer
    return match.regex is not None and re.search(match.regex, text) is not None


def integer_match(answer: str, target: str) -> bool:
    """Return whether both are the same integer."""
    ours, theirs = answer.strip(), target.strip()
    if max(len(ours), len(theirs)) > _MAX_TEXT:
        return False
    try:
        return int(ours) == int(theirs)
    except ValueError:
        return False


def string_match(answer: str, target: str) -> bool:
    """Return whether both are the same text, ignoring outer space and kinds of line ends."""
    return _plain(answer) == _plain(target)


def size_match(answer: str, target: str) -> bool:
    """Return whether both are the same number of bytes, as 12K, 4.0K or 300; K is 1024."""
    ours, theirs = _bytes(answer), _bytes(target)
    return ours is not None and ours == theirs


def contains_target(answer: str, target: str) -> bool:
    """Return whether the answer contains the target."""
    return bool(_plain(target)) and _plain(target) in _plain(answer)


def is_in_target(answer: str, target: str) -> bool:
    """Return whether the target contains the answer."""
    return bool(_plain(answer)) and _plain(answer) in _plain(target)


MATCHERS: Mapping[str, Callable[[str, str], bool]] = {
    "integer-match": integer_match,
    "string-match": string_match,
    "size-match": size_match,
    "containing": contains_target,
    "in": is_in_target,
}


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _bytes(text: str) -> Decimal | None:
    found = _SIZE.fullmatch(text.strip())
    if found is None or len(found[1]) > _MAX_TEXT:
        return None
    power = " KMGTP".index(found[2].upper() or " ")
    return Decimal(found[1]) * (1 << 10 * power)
