"""One package: what stands at the top of the repository is imported as `agentrl.<folder>` alone."""

import sys
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from running import ROOT

PACKAGE = ROOT / "src" / "agentrl"
FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


def test_every_folder_with_code_is_linked_by_a_relative_link() -> None:
    linked = {path.name: path.readlink() for path in PACKAGE.iterdir() if path.is_symlink()}
    assert linked == {name: Path("../..") / name for name in {*FOLDERS, "configs", "models"}}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_importable_by_one_name_and_from_this_checkout(name: str) -> None:
    assert find_spec(name) is None
    assert import_module(f"agentrl.{name}").__path__ == [str(PACKAGE / name)]


def test_no_file_of_ours_is_imported_under_two_names() -> None:
    names = defaultdict(set)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name != "__main__":
            names[Path(file).resolve()].add(name)
    ours = {
        path.relative_to(ROOT): found
        for path, found in names.items()
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in {*FOLDERS, "src"}
    }
    assert ours
    assert {path: found for path, found in ours.items() if len(found) > 1} == {}
