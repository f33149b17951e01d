"""Rotary positions whose frequencies transformers chooses by the largest position of a pass."""

from collections.abc import Collection, Mapping
from typing import Any

LONGROPE = ("longrope", "su")  # `su`: its name in older files
CHOOSING = (*LONGROPE, "dynamic")


def find_rotary(
    stated: Mapping[str, Any] | None, kinds: Collection[str]
) -> Mapping[str, Any] | None:
    """Return the first parameters of these kinds. `stated`: `rope_parameters` of a model's config.

    They are those of all layers, or one mapping for each type of layer.
    """
    ropes = [stated or {}, *(each for each in (stated or {}).values() if isinstance(each, Mapping))]
    return next((rope for rope in ropes if rope.get("rope_type", rope.get("type")) in kinds), None)
