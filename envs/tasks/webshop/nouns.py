"""The nouns of a product's title, without a language model.

The original tags titles with spaCy's en_core_web_lg and keeps NOUN and PROPN; in titles, nearly
every capitalised word is taken for a proper noun. The rule here: a word counts unless it begins
with a digit, has one letter, belongs to a closed class (articles, prepositions, …), or is written
in lower case and is a common adjective or ends like an adverb or a participle.
"""

import re

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_CLOSED_TEXT = (
    "a about above across after against all along also among an and any are around as at be been "
    "before behind below beneath between both but by can could did do does down during each either "
    "every few for from had has have he her his how i if in inside into is it its just like many "
    "may me more most much must my near neither no nor not of off on one onto or other our out "
    "over own per plus she should so some such than that the their them then there these they this "
    "those through to toward two three four five six seven eight nine ten under until up upon us "
    "very via was we were what when where which while who whose will with within without would yet "
    "you your vs w"
)
_CLOSED = frozenset(_CLOSED_TEXT.split())
_ADJECTIVES_TEXT = (
    "adjustable amazing artificial available beautiful best better big black blue bright "
    "brown casual cheap clean clear classic colorful comfortable compact compatible cool cute dark "
    "deep dry durable easy elegant electric extra fashionable fast flat flexible free fresh front "
    "full funny good gray great green grey handmade happy hard healthy heavy high hot huge ideal "
    "large lightweight little long loose low lovely medium mini modern multiple natural new nice "
    "old open orange organic perfect pink plastic portable premium purple quick real red "
    "replaceable reusable rich round safe sexy sharp short silver simple single slim small smart "
    "smooth soft solid special square stainless standard strong stylish super sweet thick thin "
    "tiny top total tough traditional ultra unique universal vintage warm waterproof wet white "
    "wide wireless yellow young"
)
_ADJECTIVES = frozenset(_ADJECTIVES_TEXT.split())
_ENDINGS = ("ly", "ing", "ed", "ful", "less", "able", "ible", "ous", "proof")


def nouns(title: str) -> tuple[str, ...]:
    """Lower-cased, in order, with repetitions."""
    return tuple(word.lower() for word in _WORD.findall(title) if _noun(word))


def _noun(word: str) -> bool:
    lower = word.lower()
    if word[0].isdigit() or lower in _CLOSED or len(lower.encode()) < 2:
        return False
    if word != lower:
        return True
    return lower not in _ADJECTIVES and not lower.endswith(_ENDINGS)
