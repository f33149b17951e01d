"""`agentrl config keys`: types, bounds, defaults, comments and docstrings of core/config.py."""

import ast
import inspect
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT

from core.config import NAME, Config, Section, Trainer
from core.errors import ConfigError, nearest
from ops.tables import console, plain
from trainer import presets

HEAD = """# Configuration

Every key of a run's TOML file. `agentrl config keys --markdown > docs/configuration.md` writes it
anew from `core/config.py`; `agentrl config keys trainer.lora` lists those of one section.

- `agentrl config show CONFIG` prints the values a run would take; `agentrl config check CONFIG`
  says whether it could begin with them.
- `AGENTRL__SECTION__KEY` in the environment wins over the file: `AGENTRL__TRAINER__LORA__RANK=16`;
  what is not TOML is text. Of `[[policy]]` it is the list: `AGENTRL__POLICY='[{name = "one"}]'`.
- *required*: the file must say it. *absent*: nothing is set. Names in brackets: the preset, the
  loss or the `importance` with which an absent key has that value.
"""
PLAIN = {int: "integer", float: "number", str: "text", bool: "true or false", Any: "anything"}
UNITS = {"_s": "seconds", "_hours": "hours"}  # by the end of a number's key
FORMS = {None: "[{}]", dict: "[{}.NAME]", list: "[[{}]]"}  # how a section opens in TOML

Told = tuple[str, dict[str, str]]  # of a class, and of each of its keys


@dataclass(frozen=True, slots=True)
class Key:
    """A key. `default`: as TOML, or in words; `within`: the section that its value is."""

    key: str
    type: str
    default: str
    meaning: str
    within: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A section. `name`: empty at the top of the file; `opens`: its line in TOML."""

    name: str
    opens: str
    about: str
    keys: tuple[Key, ...]


def tell(section: str, *, as_json: bool, markdown: bool) -> None:
    """Print the keys of a section, of all where it is empty. Raises ConfigError."""
    found = chosen(section)
    if as_json:
        rows = [{"section": part.name} | asdict(key) for part in found for key in part.keys]
        print(json.dumps(rows, ensure_ascii=False))
    elif markdown:
        print(page(found) if section else f"{HEAD}\n{page(found)}")
    else:
        for part in found:
            table = plain("key", "type", "default", "meaning")
            for key in part.keys:
                table.add_row(key.key, key.type, key.default, key.meaning)
            console().print(f"{part.opens} {part.about}".strip(), table, "", sep="\n")


def chosen(section: str) -> list[Part]:
    """The section of that name, every one where it is empty. Raises ConfigError."""
    every = parts()
    names = [part.name for part in every if part.name]
    if section and section not in names:
        raise ConfigError(f"no section {section}{nearest(section, names)}")
    return [part for part in every if section in ("", part.name)]


def parts(kind: type[Section] = Config) -> list[Part]:
    """Every section, the top of the file first, each before those within it."""
    said = told(inspect.getsource(sys.modules[kind.__module__]))
    return list(_walk(kind, None, Part("", "", said[kind.__name__][0], ()), said))


def page(found: Sequence[Part]) -> str:
    """Sections as Markdown, each with a table."""
    lines = []
    for part in found:
        about = f"`{part.opens}` {_linked(part.about)}".removeprefix("`` ")
        lines += [f"## {part.name or 'Top of the file'}", "", about, ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        for key in part.keys:
            anchor = key.within.replace(".", "")
            kind = f"[section](#{anchor})" if anchor else key.type.replace("|", r"\|")
            lines.append(f"| `{key.key}` | {kind} | {key.default} | {_linked(key.meaning)} |")
        lines.append("")
    return "\n".join(lines[:-1])


def told(source: str) -> dict[str, Told]:
    """What a module's comments and docstrings say of its classes.

    A comment is of the key on whose lines it stands. A docstring names a key where a sentence, or
    what follows a semicolon, begins with it: "`key`: what it means".
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {at[0]: text[2:] for kind, text, at, _, _ in tokens if kind == tokenize.COMMENT}
    found = {}
    for node in (each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)):
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        lines = {ast.unparse(f.target): range(f.lineno, (f.end_lineno or 0) + 1) for f in fields}
        said = {key: [comments[at] for at in span if at in comments] for key, span in lines.items()}
        text = " ".join((ast.get_docstring(node) or "").split())
        about, *named = re.split(rf"(?:^|(?<=[.;]) )`({'|'.join(said) or '(?!)'})`:? ", text)
        for key, clause in zip(named[::2], named[1::2], strict=True):
            said[key].insert(0, clause.rstrip(".;"))
        found[node.name] = about, {key: "; ".join(each) for key, each in said.items()}
    return found


def words(kind: Any) -> str:
    """A type in plain words. Raises KeyError for one that has none."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _bounded(words(inner[0]), inner[1])
    if origin in (Union, UnionType):
        return f"{words(inner[0])}, may be absent" if inner[1:] == (NoneType,) else PLAIN[kind]
    if origin is Literal:
        return " | ".join(map(json.dumps, inner))
    if origin is tuple:
        return f"[{', '.join(map(words, inner))}]"
    if origin in (list, dict):
        return f"{'list' if origin is list else 'table'} of {words(inner[-1])}"
    return PLAIN[kind]


def _bounded(word: str, meta: msgspec.Meta) -> str:
    if meta.pattern == NAME:
        return "name"
    if meta.ge is not None and meta.le is not None:
        return f"{word} {meta.ge:g}…{meta.le:g}"
    signs = {">": meta.gt, "≥": meta.ge, "<": meta.lt, "≤": meta.le}
    return word + "".join(f" {s} {bound:g}" for s, bound in signs.items() if bound is not None)


def _walk(
    kind: type[Section], value: Section | None, place: Part, said: Mapping[str, Told]
) -> Iterator[Part]:
    """A section and those within it. `value`: what it is by default; None where it has none."""
    keys, below = [], list[Iterator[Part]]()
    for field in msgspec.structs.fields(kind):
        made = field.default if field.default_factory is NODEFAULT else field.default_factory()
        default = getattr(value, field.name, made)
        meaning, text = said[kind.__name__][1][field.name], _text(kind, field.name, default)
        origin, path = get_origin(field.type), f"{place.name}.{field.name}".lstrip(".")
        inner = get_args(field.type)[-1] if origin in (list, dict) else field.type
        if isinstance(inner, type) and issubclass(inner, Section):
            within = Part(path, FORMS[origin].format(path), said[inner.__name__][0], ())
            own = default if isinstance(default, inner) else None
            below.append(_walk(inner, own, within, said))
            meaning = f"{within.about.partition('. ')[0].rstrip('.')}; {meaning}".removesuffix("; ")
            keys.append(Key(field.name, f"section {within.opens}", text, meaning, path))
        else:
            unit = next((unit for end, unit in UNITS.items() if field.name.endswith(end)), "number")
            kinds = words(field.type).replace("number", unit, 1)
            keys.append(Key(field.name, kinds, text, meaning))
    yield replace(place, keys=tuple(keys))
    yield from chain.from_iterable(below)


def _text(kind: type[Section], key: str, default: Any) -> str:
    if default is NODEFAULT:
        return "required"
    if isinstance(default, Section):
        return ""
    names: dict[str, list[str]] = {}
    for name, value in presets.given(key).items() if kind is Trainer else ():
        names.setdefault(_toml(value), []).append(name)
    return ", ".join(f"{v} ({', '.join(n)})" for v, n in names.items()) or _toml(default)


def _toml(value: Any) -> str:
    return "absent" if value is None else json.dumps(value, ensure_ascii=False)


def _linked(text: str) -> str:
    """Pages of docs/ as links from there; a bar would end a cell."""
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text).replace("|", r"\|")
