"""What the page *Configuration* and the differences on *Compare* show: plain values."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import NODEFAULT

from agentrl.core import config_loading
from agentrl.core.errors import ConfigError
from agentrl.db.models.runs import Run
from agentrl.db.store import Store

OWN = frozenset({"run.name", "run.home"})  # they differ between any two runs
NO_VALUE = "–"

Values = dict[str, tuple[str, str]]  # value and default as text, by key; default "": unknown


def read_values(store: Store, run_id: str) -> Values:
    """Read the configuration that the run began with."""
    with store.read() as session:
        run = session.get_one(Run, run_id)
        return values_of(run.config, run.name)


def values_of(written: str, name: str) -> Values:
    """Return every key of a stored configuration.

    One that an older version stored is shown as it stands, without defaults.
    """
    try:
        return dict(_leaves(config_loading.from_json(written, f"run {name}"), ""))
    except ConfigError:
        return {key: (value, "") for key, value in _flat(json.loads(written), "")}


def _leaves(section: msgspec.Struct, prefix: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each key of a section with its value and default."""
    for field in msgspec.structs.fields(section):
        value, key = getattr(section, field.name), prefix + field.name
        if isinstance(value, msgspec.Struct):
            yield from _leaves(value, f"{key}.")
        elif parts := _sections(value, key):
            for part, inner in parts.items():
                yield from _leaves(inner, f"{part}.")
        else:
            default = field.default if field.default_factory is NODEFAULT else None
            if field.default_factory is not NODEFAULT:
                default = field.default_factory()
            yield key, (text(value), "" if default is NODEFAULT else text(default))


def _sections(value: Any, key: str) -> dict[str, msgspec.Struct]:
    """Return the sections in a table or list of sections, by their keys; empty: it is a value."""
    if isinstance(value, dict):
        return {f"{key}.{k}": v for k, v in value.items() if isinstance(v, msgspec.Struct)}
    if isinstance(value, list | tuple):
        return {f"{key}[{n}]": v for n, v in enumerate(value) if isinstance(v, msgspec.Struct)}
    return {}


def _flat(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else name)
    else:
        yield key, text(value)


def text(value: Any) -> str:
    """Return a value as in TOML, without quotes."""
    if value is None or value == "":
        return NO_VALUE
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def config_rows(values: Values, *, changed: bool) -> list[dict[str, Any]]:
    """Return a row per key. `changed`: only of keys whose value is not the default."""
    return [
        {"key": key, "value": value, "default": default}
        for key, (value, default) in values.items()
        if not changed or value != default
    ]


def difference_rows(runs: Mapping[str, Values]) -> list[dict[str, Any]]:
    """Return a row per key in which the runs differ, a column per run."""
    keys = dict.fromkeys(key for values in runs.values() for key in values if key not in OWN)
    rows = [
        {"key": key} | {name: values.get(key, (NO_VALUE, ""))[0] for name, values in runs.items()}
        for key in keys
    ]
    return [row for row in rows if len({row[name] for name in runs}) > 1]
