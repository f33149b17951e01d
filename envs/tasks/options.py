"""Converts options and item contents to typed structs. Raises ItemError for unknown fields."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from agentrl.core.config.secrets import fill_secrets
from agentrl.core.errors import ItemError, nearest
from agentrl.envs.contract import Item

T = TypeVar("T", bound=msgspec.Struct)

Difficulty = Literal["easy", "medium", "hard"]
Style = Literal["full", "compact"]
_OF_DATASETS = {"origin": "has no origins", "data": "reads no data"}  # where it has none
Count = Annotated[int, Meta(ge=1)]
EMPTY = '""'  # as a person types the empty text


class Generated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a task with generated items.

    `items`, `test_items`: sizes of the splits train and test. `style`: `full` prompts are the
    benchmark's, `compact` ones fit a policy of a million parameters; calls and rules are the same.
    """

    seed: int = 0
    difficulty: Difficulty = "easy"
    style: Style = "full"
    items: Count = 2000
    test_items: Count = 400


def parse(task: str, kind: type[T], options: Mapping[str, Any]) -> T:
    """Convert `options` to a `kind`. Raises ItemError with the option and the nearest known one.

    A task that knows no `origin` has generated items alone: who asks for just these gets them.
    """
    fields = kind.__struct_fields__
    if "origin" not in fields and options.get("origin") == "generated":
        options = {name: value for name, value in options.items() if name != "origin"}
    for name in options:
        if name not in fields:
            if name in _OF_DATASETS and "origin" not in fields and issubclass(kind, Generated):
                raise ItemError(f"{task} {_OF_DATASETS[name]}: its items are all generated")
            raise ItemError(f"{task}: unknown option {name}{nearest(name, fields)}")
    return _convert(options, kind, f"{task}: option")


def read(item: Item, kind: type[T]) -> T:
    """Convert an item's content to a `kind`. Raises ItemError."""
    return _convert(item.content, kind, f"item {item.item_id}:")


def content(problem: msgspec.Struct) -> dict[str, Any]:
    """Return an item's content: lists and texts, as an env server receives them."""
    return msgspec.json.decode(msgspec.json.encode(problem), type=dict[str, Any])


def fill_env(task: str, option: str, given: Mapping[str, str]) -> dict[str, str]:
    """Replace each `${NAME}` in the values of an option. Raises ConfigError for one not set."""
    where = f"tasks.{task}.options.{option}"
    return {name: fill_secrets(text, where) for name, text in given.items()}


def _convert(value: Mapping[str, Any], kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`")
        known = get_args(get_type_hints(kind).get(name))
        choices = ""
        if known and isinstance(known[0], str):
            choices = f"; known: {', '.join(each or EMPTY for each in known)}"
        elif text.startswith("Expected `bool`"):
            choices = ": true or false"
        raise ItemError(f"{where} {name or 'content'}: {text}{choices}") from error
