"""The nearest admissible action to what an agent wrote, by sentence BLEU (Papineni et al., 2002).

Up to 4-grams, brevity penalty, and the smoothing of short segments that Chen and Cherry (2014) call
method 4: the k-th order without a match counts log(length) / (5 · 2^k) matches.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

ORDERS = 4
SMOOTHING = 5.0
THRESHOLD = 0.01


def nearest_action(text: str, admissible: Iterable[str]) -> str | None:
    """Return `text` if it is admissible, else the most similar action, or None without one."""
    actions = list(admissible)
    if text in actions:
        return text
    words = text.split()
    score, action = max(
        ((bleu(action.split(), words), action) for action in actions),
        key=lambda scored: scored[0],
        default=(0.0, ""),
    )
    return action if score > THRESHOLD else None


def bleu(reference: Sequence[str], candidate: Sequence[str]) -> float:
    """Return BLEU in [0, 1] of a candidate against one reference, over words."""
    length = len(candidate)
    if not set(reference) & set(candidate):
        return 0.0
    logs = 0.0
    misses = 0
    for order in range(1, ORDERS + 1):
        ours, theirs = _ngrams(candidate, order), _ngrams(reference, order)
        matches: float = (ours & theirs).total()
        if not matches and length > 1:
            misses += 1
            matches = math.log(length) / (SMOOTHING * 2**misses)
        if matches:
            logs += math.log(matches / max(1, ours.total())) / ORDERS
    penalty = min(0.0, 1.0 - len(reference) / length)
    return math.exp(logs + penalty)


def _ngrams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(order)), strict=False))
