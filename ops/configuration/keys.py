"""`agentrl config keys`: types, bounds, defaults and descriptions of core/config/."""

import ast
import difflib
import inspect
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT

from agentrl.core.config.config import Config
from agentrl.core.config.sections.base import NAME, Section
from agentrl.core.config.sections.monitoring import Trackers
from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.config.sections.training import Trainer
from agentrl.core.errors import ConfigError, nearest
from agentrl.ops.tables import console, plain
from agentrl.ops.trackers.factory import TRACKERS
from agentrl.serving.engines import ENGINES, EXTERNAL
from agentrl.trainer.algorithm import presets

HEAD = """# Configuration

Find every key of a run's TOML file. `agentrl config keys trainer.lora` prints one section,
`agentrl config show CONFIG` the values in effect, and `agentrl config check CONFIG` says whether a
run can start with them.

- An environment variable `AGENTRL__SECTION__KEY` overrides the file:
  `AGENTRL__TRAINER__LORA__RANK=16`. Its value is read as TOML; if that fails, as plain text. A list
  of sections, and a table whose keys have capitals, can only be set as a whole:
  `AGENTRL__POLICY='[{name = "one"}]'`.
- `${NAME}` in `store.url`, `broker.url`, `broker.tasks_url` and `run.checkpoints` is replaced by
  the environment variable `NAME`, or by the content of the file that `NAME_FILE` names. Write a
  password there as it is: AgentRL percent-encodes it.
- Each key is listed with its default. If the default does not show which values are allowed, they
  follow in parentheses. `agentrl config keys` prints every type and bound. Keys that end in `_s`
  are seconds.
- A default such as `0.28 (default), 4.0 (cispo)` depends on `preset`, `loss` or `importance`: it is
  0.28 with `preset = "default"`, but 4.0 with `loss = "cispo"`, whatever the preset.

This page is generated: `agentrl config keys --markdown > docs/configuration.md`.
"""
PLAIN = {int: "integer", float: "number", str: "text", bool: "boolean", Any: "anything"}
UNITS = {"_s": "seconds", "_hours": "hours"}  # by the end of a number's key
FORMS = {None: "[{}]", dict: "[{}.NAME]", list: "[[{}]]"}  # how a section opens in TOML

KeyText = tuple[str, dict[str, str]]  # of a class, and of each of its keys


@dataclass(frozen=True, slots=True)
class Key:
    """A key. `default`: None if it has none or is a section; `within`: name of the section that is
    its value; `by`: default by preset, loss or `importance`.
    """

    key: str
    type: str
    default: Any
    meaning: str
    within: str = ""
    by: Mapping[str, Any] = field(default_factory=dict)
    required: bool = False

    def default_text(self) -> str:
        """Return the default as TOML, or in words."""
        if self.required or (self.within and self.default is None):
            return "required" if self.required else ""
        names: dict[str, list[str]] = {}
        for name, value in self.by.items():
            names.setdefault(_toml(value), []).append(name)
        values = (f"{value} ({', '.join(each)})" for value, each in names.items())
        return ", ".join(values) or _toml(self.default)


@dataclass(frozen=True, slots=True)
class KeySection:
    """A section. `name`: empty for the top of the file; `opens`: its heading in TOML."""

    name: str
    opens: str
    about: str
    keys: tuple[Key, ...]


def print_keys(section: str, *, as_json: bool, markdown: bool, width: int | None = None) -> None:
    """Print the keys that `chosen` returns. `width`: columns; by default the terminal's.

    Raises ConfigError.
    """
    sections = choose_sections(section)
    if as_json:
        rows = [{"section": part.name} | asdict(key) for part in sections for key in part.keys]
        print(json.dumps(rows))
    elif markdown:
        print(page(sections) if section else f"{HEAD}\n{page(sections)}")
    else:
        for part in sections:
            table = plain("key", "type", "default", "meaning")
            table.columns[0].no_wrap = True
            for column in table.columns[1:]:
                column.overflow = "fold"
            for key in part.keys:
                table.add_row(key.key, key.type, key.default_text(), key.meaning)
            console(width).print(f"{part.opens} {part.about}".strip(), table, "", sep="\n")


def choose_sections(section: str) -> list[KeySection]:
    """Return the section with this name, the one key SECTION.KEY, or every section if empty.

    The name may be in brackets. `tasks.X` is accepted for any X. Raises ConfigError.
    """
    every = key_sections()
    name = section.strip("[]")
    sections = {part.name: part for part in every if part.name}
    rows = {
        f"{part.name}.{key.key}".lstrip("."): replace(part, keys=(key,))
        for part in every
        for key in part.keys
    }
    known = rows | sections
    if name.startswith("tasks."):
        key = f"tasks.{name.rpartition('.')[2]}"
        name = key if key in known else "tasks"
    if name and name not in known:
        near = difflib.get_close_matches(name, known)
        raise ConfigError(f"unknown section or key {name}{nearest(name, near or sections)}")
    return [known[name]] if name else every


def key_sections(kind: type[Section] = Config) -> list[KeySection]:
    """Return all sections, the top of the file first, each before its subsections."""
    return list(_walk(kind, None, KeySection("", "", _key_text(kind)[0], ())))


def page(sections: Sequence[KeySection]) -> str:
    """Return sections as Markdown.

    Each has links to its subsections, and a list of its other keys, or a link to an equal one.
    """
    blocks = []
    lists: dict[str, str] = {}
    for part in sections:
        about = f"`{part.opens}` {_with_links(part.about)}".removeprefix("`` ")
        listed = _key_list(part)
        shown = lists.setdefault(listed, part.name)
        same = f"The keys and defaults are those of {_section_link(shown)}."
        within = [_section_link(key.within) for key in part.keys if key.within]
        blocks += [f"## {part.name or 'Top of the file'}", about]
        blocks += [f"Its sections: {', '.join(within)}."] if within else []
        blocks += [listed if shown == part.name else same] if listed else []
    return "\n\n".join(blocks)


def _key_list(part: KeySection) -> str:
    return "\n".join(
        f"- `{key.key} = {key.default_text()}`{_values_text(key)}: {_with_links(key.meaning)}"
        for key in part.keys
        if not key.within
    )


def _values_text(key: Key) -> str:
    """Return the type of a key in parentheses, empty if its default shows it."""
    plain_type = re.sub(r"^(\w+) (≥ [01]|> 0)$", r"\1", key.type)
    defaults = [key.default, *key.by.values()]
    shown = {*PLAIN.values(), *UNITS.values(), "list of text", "table of text", "table of anything"}
    is_shown = plain_type in shown and any(each is not None for each in defaults)
    return "" if is_shown else f" ({plain_type})"


def _section_link(name: str) -> str:
    return f"[{name}](#{name.replace('.', '')})"


def _key_text(kind: type[Section]) -> KeyText:
    return read_key_texts(inspect.getsource(kind))[kind.__name__]


def read_key_texts(source: str) -> dict[str, KeyText]:
    """Return the docstring of each class in a module, and of each of its keys.

    The docstring of a key is the string below it.
    """
    texts = {}
    for node in (each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)):
        keys = {
            ast.unparse(key.target): _string(below)
            for key, below in pairwise([*node.body, ast.Pass()])
            if isinstance(key, ast.AnnAssign)
        }
        texts[node.name] = " ".join((ast.get_docstring(node) or "").split()), keys
    return texts


def _string(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(ast.Constant(str(text))):
            return " ".join(text.split())
    return ""


def type_text(kind: Any) -> str:
    """Describe a type in words. Raises KeyError for a type without a description."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _bounds_text(type_text(inner[0]), inner[1])
    if origin in (Union, UnionType):
        return type_text(inner[0]) if inner[1:] == (NoneType,) else PLAIN[kind]
    if origin is Literal:
        return _choices_text(inner)
    if origin is tuple:
        return f"[{', '.join(map(type_text, inner))}]"
    if origin in (list, dict):
        return f"{'list' if origin is list else 'table'} of {type_text(inner[-1])}"
    return PLAIN[kind]


def _choices_text(values: Collection[Any]) -> str:
    *first, last = map(json.dumps, values)
    return f"{', '.join(first)} or {last}" if first else last


def _bounds_text(word: str, meta: msgspec.Meta) -> str:
    if meta.pattern == NAME:
        return "name"
    if meta.ge is not None and meta.le is not None:
        return f"{word} {meta.ge:g}…{meta.le:g}"
    signs = {">": meta.gt, "≥": meta.ge, "<": meta.lt, "≤": meta.le}
    return word + "".join(f" {s} {bound:g}" for s, bound in signs.items() if bound is not None)


def _walk(kind: type[Section], value: Section | None, place: KeySection) -> Iterator[KeySection]:
    """Yield a section and its subsections. `value`: its default; None if it has none."""
    keys, below, meanings = [], list[Iterator[KeySection]](), _key_text(kind)[1]
    for each in msgspec.structs.fields(kind):
        declared = each.default if each.default_factory is NODEFAULT else each.default_factory()
        default = getattr(value, each.name, declared)
        key = Key(
            each.name,
            type="",
            default=None if default is NODEFAULT or isinstance(default, Section) else default,
            meaning=meanings[each.name],
            by=presets.preset_value(each.name) if kind is Trainer else {},
            required=default is NODEFAULT,
        )
        origin, path = get_origin(each.type), f"{place.name}.{each.name}".lstrip(".")
        inner = get_args(each.type)[-1] if origin in (list, dict) else each.type
        if isinstance(inner, type) and issubclass(inner, Section):
            opens = f"{place.opens.strip('[]')}.{each.name}".lstrip(".")
            about = _key_text(inner)[0]
            within = KeySection(path, FORMS[origin].format(opens), about, ())
            own = default if isinstance(default, inner) else None
            below.append(_walk(inner, own, within))
            meaning = key.meaning or f"{within.about.partition('. ')[0].rstrip('.')}."
            keys.append(replace(key, type=f"section {within.opens}", meaning=meaning, within=path))
        else:
            unit = next((unit for end, unit in UNITS.items() if each.name.endswith(end)), "number")
            type_name = type_text(each.type).replace("number", unit, 1)
            if names := _registered_names(kind, each.name):
                type_name = type_name.replace("text", _choices_text(names))
            keys.append(replace(key, type=type_name))
    yield replace(place, keys=tuple(keys))
    yield from chain.from_iterable(below)


def _registered_names(kind: type[Section], key: str) -> Collection[str]:
    """Return the names that files register for a key; empty: any text is allowed."""
    if kind is Trainer:
        return presets.choices(key)
    return {(PolicyServer, "engine"): [*ENGINES, EXTERNAL], (Trackers, "use"): [*TRACKERS]}.get(
        (kind, key), ()
    )


def _toml(value: Any) -> str:
    return "absent" if value is None else json.dumps(value, ensure_ascii=False)


def _with_links(text: str) -> str:
    """Turn pages of docs/ into links from there."""
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)
