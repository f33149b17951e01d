"""A judge that any policy can please by chance: the share of vowels in what it said."""

from typing import Any


def judge(_item: Any, episode: Any) -> float:
    said = "".join(
        each["content"] for each in episode.messages if each["role"] == "assistant"
    ).lower()
    return sum(letter in "aeiou" for letter in said) / max(1, len(said))
