"""The probe text of a checkpoint: natural language, in the policy's own tokens.

Random tokens are improbable, and log-probabilities of improbable tokens differ most between two
correct implementations. On natural text the median differs by 0.01 to 0.03 in bfloat16 (SmolLM2).
"""

from pathlib import Path
from random import Random

TOKENS = 96  # at most
SEED = 0
TEXT = """\
The ferry left the harbour a little after six, when the fog had lifted and the lights along \
the quay were still on. A dozen passengers stood on the upper deck, most of them on their way \
to work, and watched the town grow smaller behind them. Nobody spoke much. Somewhere below, an \
engine that had been repaired twice that winter kept its steady beat, and the smell of coffee \
came up the stairs with the steward, who knew everyone by name. Two children counted the gulls \
and argued about the sum."""


def probe_tokens(model: Path, vocabulary: int, context: int) -> list[int]:
    """Token ids below `vocabulary`, at most TOKENS and `context`.

    Pseudo-random ones where the model's directory has no tokenizer that can be read.
    """
    from tokenizers import Tokenizer

    count = min(TOKENS, context)
    try:
        encoded = Tokenizer.from_file(str(model / "tokenizer.json")).encode(TEXT)
    except Exception:  # tokenizers raises nothing narrower
        encoded = None
    found = [token for token in encoded.ids if token < vocabulary] if encoded else []
    if len(found) < 2:
        random = Random(SEED)
        found = [random.randrange(vocabulary) for _ in range(count)]
    return found[:count]
