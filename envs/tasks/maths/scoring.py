"""Whether an answer is the right one: equal as numbers, else as texts. docs/tasks/maths.md."""

import re
from fractions import Fraction

LONGEST = 300  # characters of an answer
LARGEST_EXPONENT = 400  # of 1.5e10
TOLERANCE = Fraction(1, 10**12)  # of a number with a decimal point, relative to the right one
TINY = Fraction(1, 10**15)  # a float that should be zero

_BOXED = re.compile(r"\\boxed\s*\{(.*)\}")
_FRAC = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_NAMED = re.compile(r"[A-Za-z]\w*\s*=(?!=)")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", re.ASCII)
_INTEGER = r"[+-]?\d+"
_DECIMAL = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,4}))?", re.ASCII)
_FRACTION = re.compile(rf"\(?({_INTEGER})\)?/\(?({_INTEGER})\)?", re.ASCII)
_MIXED = re.compile(r"([+-]?)(\d+) (\d+)/(\d+)", re.ASCII)
_SIGNS = str.maketrans({"−": "-", "–": "-", "×": "*", "⁄": "/", "$": "", "%": "", "€": "", "£": ""})


def answers_match(given: str, right: str) -> bool:
    """Whether `given` is the answer `right`. An empty or overlong answer never is."""
    if not given.strip() or len(given) > LONGEST:
        return False
    mine, theirs = normalise(given), normalise(right)
    one, other = number(mine), number(theirs)
    if one is None or other is None:
        return one is other and bool(mine) and _letters(mine) == _letters(theirs)
    if _is_exact(mine) and _is_exact(theirs):
        return one == other
    return abs(one - other) <= max(TOLERANCE * abs(other), TINY)


def normalise(text: str) -> str:
    r"""Drop what does not change a value: $, %, \boxed, `x =`, thousands commas, a final period."""
    text = text.translate(_SIGNS).strip()
    if boxed := _BOXED.search(text):
        text = boxed[1]
    text = _FRAC.sub(r"\1/\2", text).replace("\\", "").strip()
    if named := _NAMED.match(text):
        text = text[named.end() :]
    text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    return " ".join(text.strip().removesuffix(".").split())


def number(text: str) -> Fraction | None:
    """Return the value of a normalised integer, decimal, fraction or mixed number, else None."""
    try:
        if mixed := _MIXED.fullmatch(text):
            sign, whole, top, bottom = mixed.groups()
            value = int(whole) + Fraction(int(top), int(bottom))
            return -value if sign == "-" else value
        text = text.replace(" ", "")
        if fraction := _FRACTION.fullmatch(text):
            return Fraction(int(fraction[1]), int(fraction[2]))
    except ZeroDivisionError:
        return None
    decimal = _DECIMAL.fullmatch(text)
    exponent = int(decimal[2] or 0) if decimal else 0
    if decimal is None or abs(exponent) > LARGEST_EXPONENT:
        return None
    return Fraction(decimal[1]) * Fraction(10) ** exponent


def _is_exact(text: str) -> bool:
    """Whether a number is written as an integer or a fraction, so that nothing was rounded."""
    return not re.search(r"[.eE]", text)


def _letters(text: str) -> str:
    return "".join(text.split()).casefold()
