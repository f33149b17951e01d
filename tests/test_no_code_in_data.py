"""Nothing of ours makes code of data: JSON, MessagePack, TOML and safetensors are all we read."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.config import Config, Task
from workers.app import celery_app

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "broker",
    "cli",
    "core",
    "dashboard",
    "db",
    "envs",
    "ops",
    "serving",
    "trainer",
    "workers",
)
MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
}
CALLS = {"eval", "exec", "compile", "__import__"}
LOADS = {"torch.load": "weights_only", "numpy.load": "allow_pickle", "np.load": "allow_pickle"}


def _files() -> list[Path]:
    folders = [ROOT / name for name in (*PACKAGES, "benchmarks")]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def _offences(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (n.name for n in names if n.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                yield module
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield name
            case ast.Call(func=ast.Attribute()) if (name := ast.unparse(node.func)) in LOADS:
                wanted = {"weights_only": "True", "allow_pickle": "False"}[LOADS[name]]
                given = {k.arg: ast.unparse(k.value) for k in node.keywords}
                if given.get(LOADS[name]) != wanted:
                    yield name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from pickle import loads", ["pickle"]),
        ("import os, marshal", ["marshal"]),
        ("eval('1')", ["eval"]),
        ("model.eval()", []),
        ("re.compile('x')", []),
        ("torch.load(path)", ["torch.load"]),
        ("torch.load(path, weights_only=False)", ["torch.load"]),
        ("torch.load(path, weights_only=True)", []),
        ("np.load(path)", ["np.load"]),
        ("np.load(path, allow_pickle=False)", []),
    ],
)
def test_an_offence_is_seen(text: str, found: list[str]) -> None:
    assert list(_offences(ast.parse(text))) == found


def test_no_package_makes_code_of_data() -> None:
    files = _files()
    assert len(files) > 250
    offences = {
        str(path.relative_to(ROOT)): found
        for path in files
        if (found := list(_offences(ast.parse(path.read_text()))))
    }
    assert offences == {}


def test_celery_takes_json_alone() -> None:
    app = celery_app(Config(tasks={"dbbench": Task()}), "run")
    assert (app.conf.accept_content, app.conf.task_serializer) == (["json"], "json")
    app.close()
