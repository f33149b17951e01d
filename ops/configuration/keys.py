"""`agentrl config keys`: types, bounds, defaults, comments and docstrings of core/config.py."""

import ast
import difflib
import inspect
import io
import json
import re
import sys
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT

from agentrl.core.config import NAME, Config, PolicyServer, Section, Trackers, Trainer
from agentrl.core.errors import ConfigError, nearest
from agentrl.ops.tables import console, plain
from agentrl.ops.trackers.factory import TRACKERS
from agentrl.serving.engines import ENGINES, EXTERNAL
from agentrl.trainer.algorithm import presets

HEAD = """# Configuration

Every key of a run's TOML file. `agentrl config keys --markdown > docs/configuration.md` writes it
anew from `core/config.py`; `agentrl config keys trainer.lora` lists those of one section.

- `agentrl config show CONFIG` prints the values a run would take; `agentrl config check CONFIG`
  says whether it could begin with them.
- `AGENTRL__SECTION__KEY` in the environment wins over the file: `AGENTRL__TRAINER__LORA__RANK=16`;
  what is not TOML is text. Of `[[policy]]` it is the list: `AGENTRL__POLICY='[{name = "one"}]'`.
  The variable's name is lower-cased: where letters matter, as in `env`, it is the table:
  `AGENTRL__EVAL__VLLM__ENV='{CUDA_VISIBLE_DEVICES = "0"}'`.
- `${NAME}` in `store.url`, `broker.url`, `broker.tasks_url` and `run.checkpoints` is read from the
  environment, or from the file that `NAME_FILE` names. A password stands there as it is: AgentRL
  percent-encodes it.
- *required*: the file must say it. *absent*: nothing is set. Names in brackets: the preset, the
  loss or the `importance` with which an absent key has that value; the loss's comes before the
  preset's.
- What `tasks.NAME.options` holds is on the task's own page, `docs/tasks/NAME.md`; of `gateway` in
  [gateway.md](gateway.md).
"""
PLAIN = {int: "integer", float: "number", str: "text", bool: "true or false", Any: "anything"}
UNITS = {"_s": "seconds", "_hours": "hours"}  # by the end of a number's key
FORMS = {None: "[{}]", dict: "[{}.NAME]", list: "[[{}]]"}  # how a section opens in TOML

Told = tuple[str, dict[str, str]]  # of a class, and of each of its keys


@dataclass(frozen=True, slots=True)
class Key:
    """A key. `default`: None where it has none, or is a section; `within`: the section that its
    value is; `by`: values of the absent key by preset, loss or `importance`.
    """

    key: str
    type: str
    default: Any
    meaning: str
    within: str = ""
    by: Mapping[str, Any] = field(default_factory=dict)
    required: bool = False

    def shown(self) -> str:
        """The default as TOML, or in words."""
        if self.required or (self.within and self.default is None):
            return "required" if self.required else ""
        names: dict[str, list[str]] = {}
        for name, value in self.by.items():
            names.setdefault(_toml(value), []).append(name)
        told_by = (f"{value} ({', '.join(each)})" for value, each in names.items())
        return ", ".join(told_by) or _toml(self.default)


@dataclass(frozen=True, slots=True)
class Part:
    """A section. `name`: empty at the top of the file; `opens`: its line in TOML."""

    name: str
    opens: str
    about: str
    keys: tuple[Key, ...]


def tell(section: str, *, as_json: bool, markdown: bool, width: int | None = None) -> None:
    """Print the keys that `chosen` finds. `width`: columns, instead of the terminal's.

    Raises ConfigError.
    """
    found = chosen(section)
    if as_json:
        rows = [{"section": part.name} | asdict(key) for part in found for key in part.keys]
        print(json.dumps(rows))
    elif markdown:
        print(page(found) if section else f"{HEAD}\n{page(found)}")
    else:
        for part in found:
            table = plain("key", "type", "default", "meaning")
            table.columns[0].no_wrap = True
            for column in table.columns[1:]:
                column.overflow = "fold"
            for key in part.keys:
                table.add_row(key.key, key.type, key.shown(), key.meaning)
            console(width).print(f"{part.opens} {part.about}".strip(), table, "", sep="\n")


def chosen(section: str) -> list[Part]:
    """The section of that name, or its one key as SECTION.KEY; every section where it is empty.

    A section may stand in brackets; any name is that of a task. Raises ConfigError.
    """
    every = parts()
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
        raise ConfigError(f"no section or key {name}{nearest(name, near or sections)}")
    return [known[name]] if name else every


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
            lines.append(f"| `{key.key}` | {kind} | {key.shown()} | {_linked(key.meaning)} |")
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
    for each in msgspec.structs.fields(kind):
        made = each.default if each.default_factory is NODEFAULT else each.default_factory()
        default = getattr(value, each.name, made)
        key = Key(
            each.name,
            type="",
            default=None if default is NODEFAULT or isinstance(default, Section) else default,
            meaning=said[kind.__name__][1][each.name],
            by=presets.given(each.name) if kind is Trainer else {},
            required=default is NODEFAULT,
        )
        origin, path = get_origin(each.type), f"{place.name}.{each.name}".lstrip(".")
        inner = get_args(each.type)[-1] if origin in (list, dict) else each.type
        if isinstance(inner, type) and issubclass(inner, Section):
            within = Part(path, FORMS[origin].format(path), said[inner.__name__][0], ())
            own = default if isinstance(default, inner) else None
            below.append(_walk(inner, own, within, said))
            about = within.about.partition(". ")[0].rstrip(".")
            meaning = f"{about}; {key.meaning}".removesuffix("; ")
            keys.append(replace(key, type=f"section {within.opens}", meaning=meaning, within=path))
        else:
            unit = next((unit for end, unit in UNITS.items() if each.name.endswith(end)), "number")
            shown = words(each.type).replace("number", unit, 1)
            if names := _registered(kind, each.name):
                shown = shown.replace("text", " | ".join(map(json.dumps, names)))
            keys.append(replace(key, type=shown))
    yield replace(place, keys=tuple(keys))
    yield from chain.from_iterable(below)


def _registered(kind: type[Section], key: str) -> Collection[str]:
    """The names that a key may have where files register them; none where any text will do."""
    if kind is Trainer:
        return presets.choices(key)
    return {(PolicyServer, "engine"): [*ENGINES, EXTERNAL], (Trackers, "use"): [*TRACKERS]}.get(
        (kind, key), ()
    )


def _toml(value: Any) -> str:
    return "absent" if value is None else json.dumps(value, ensure_ascii=False)


def _linked(text: str) -> str:
    """Pages of docs/ as links from there; a bar would end a cell."""
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text).replace("|", r"\|")
