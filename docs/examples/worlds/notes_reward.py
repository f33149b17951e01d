"""The reward of the task `notes`: whether the note has the wanted text."""

from collections.abc import Mapping
from typing import Any


def kept(item: Mapping[str, Any], result: Any) -> bool:
    """Return whether the server now has the item's text."""
    return bool(result.call("read", {"name": item["note"]}) == item["text"])
