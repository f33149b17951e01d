"""The benchmark's items, in either of two shapes: its own, and one with the scripts inlined.

    own      {"description", "create": {"local"?, "init"?}, "start"?,
              "evaluation": {"match"} or {"check": [null, script, …], "example"?}}
    inlined  {"id", "description", "image", "init", "start",
              "match" or "check": [{"kind": "run_example" | "matcher" | "script", …}], "example"}

A script is text, {"language"?, "code"} or {"language"?, "file"}; files lie under os/scripts.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Item
from agentrl.envs.tasks.datasets import MissingDataset, locate, locate_file, read_rows
from agentrl.envs.tasks.oslinux.datasets import AGENTBENCH, STANDARD, TREE
from agentrl.envs.tasks.oslinux.matchers import MATCHERS

SPLITS = {
    "train": "os/os_train.jsonl",
    "dev": "os/os_dev.jsonl",
    "standard": "os/os_standard.jsonl",
}
SCRIPTS = "os/scripts"
FOLDERS = range(1, 8)  # of the tree, that the split `standard` consists of
OF_TRAINING = "7"  # the folder of scripts that the tree's training items name


def load(split: str, given: str) -> tuple[Item, ...]:
    """Read the items of a split. Raises ItemError that names the line."""
    return tuple(
        item
        for path, scripts, prefix in _files(split, given)
        for item in _items(path, scripts, prefix)
    )


def _files(split: str, given: str) -> Iterator[tuple[Path, Path, str]]:
    """Yield the files of a split, the folder of their scripts and the beginning of their ids."""
    dataset = STANDARD if split == "standard" else AGENTBENCH
    path = locate_file(dataset, SPLITS[split], given)
    root = locate(dataset, given, [SPLITS[split]])
    tree = root / TREE
    if path == root / SPLITS[split]:
        yield path, root / SCRIPTS, f"{split}#"
    elif split != "standard":
        yield path, tree / "scripts" / (OF_TRAINING if split == "train" else split), f"{split}#"
    else:
        for folder in FOLDERS:
            files = sorted((tree / "data" / str(folder)).glob("*.json"))
            if not files:
                raise MissingDataset(
                    f"os: dataset {dataset.name}: {tree / 'data' / str(folder)} has no JSON file",
                    hint="run `agentrl data show os`",
                )
            for file in files:
                yield file, tree / "scripts" / str(folder), f"{split}-{folder}-{file.stem}#"


def _items(path: Path, scripts: Path, prefix: str) -> Iterator[Item]:
    for number, (place, encoded) in enumerate(read_rows(path)):
        try:
            row = msgspec.json.decode(encoded, type=dict[str, Any])
            content = content_of(row, scripts)
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
            raise ItemError(f"os: {place}: {type(error).__name__}: {error}") from error
        except ItemError as error:
            raise ItemError(f"os: {place}: {error}") from error
        yield Item("os", str(row.get("id", f"{prefix}{number}")), content)


def content_of(row: Mapping[str, Any], scripts: Path) -> dict[str, Any]:
    """Return an item's content from a line. Raises ItemError, KeyError, TypeError."""
    create, evaluation = row.get("create") or row, row.get("evaluation") or row
    content: dict[str, Any] = {
        "description": row["description"],
        "image": create.get("local") or create.get("image") or "default",
        "init": [_script(each, scripts) for each in _as_list(create.get("init"))],
    }
    for name, script in (("start", row.get("start")), ("example", evaluation.get("example"))):
        if script:
            content[name] = _script(script, scripts)
    match = evaluation.get("match")
    if match is not None:
        content["match"] = {"answer": match} if isinstance(match, str) else match
    else:
        content["check"] = [_step(each, scripts) for each in _as_list(evaluation["check"])]
    return content


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _step(step: Any, scripts: Path) -> dict[str, Any]:
    """Parse a step of a check; the benchmark's matchers are recognised by their files' names."""
    if step is None:
        return {"example": True}
    if isinstance(step, dict):
        kind = step.get("kind")
        if kind == "run_example":
            return {"example": True}
        stem = PurePosixPath(step.get("file", "")).stem
        if kind == "matcher" or stem in MATCHERS:
            return {"matcher": step["name"] if kind else stem}
    return {"script": _script(step, scripts)}


def _script(script: Any, scripts: Path) -> dict[str, str]:
    if isinstance(script, str):
        return {"code": script}
    language = script.get("language", "bash")
    if "code" in script:
        return {"language": language, "code": script["code"]}
    path = (scripts / script["file"]).resolve()
    if not path.is_relative_to(scripts.resolve()) or not path.is_file():
        raise ItemError(f"no script {script['file']} under {scripts}")
    return {"language": language, "code": path.read_text()}
