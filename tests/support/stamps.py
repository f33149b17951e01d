"""pytest plugin: skip the test files that already passed on this tree (`make test-all`).

`-p stamps --stamps DIR` writes an empty file under DIR/<tree> for each test file whose tests all
passed, at the moment the last of them ends, and deselects the files that have one. <tree> is a hash
of the files as they are in the working tree, also those that git does not know yet, so any edit
starts anew. A file with a skipped test gets no stamp; nor does any where tests were selected by
name, or by another mark than `make test-all`'s.
"""

import os
import subprocess
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MARKS = "not oracles"
"""What `make test-all` selects."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stamps", type=Path, help="skip files with a stamp under this directory")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("stamps"):
        chosen = config.option
        whole = chosen.markexpr == MARKS and not chosen.keyword and "::" not in "".join(config.args)
        folder = config.getoption("stamps").absolute() / _tree(config.rootpath)
        config.pluginmanager.register(Stamps(folder, writes=whole), "stamps-of-this-tree")


def _tree(root: Path) -> str:
    """Return the hash of all files that git would commit. The index itself is left alone: the
    processes of one run ask at once.
    """
    with TemporaryDirectory() as folder:
        variables = os.environ | {"GIT_INDEX_FILE": str(Path(folder, "index"))}

        def git(*arguments: str) -> str:
            done = subprocess.run(
                ["git", *arguments], cwd=root, env=variables, capture_output=True, check=True
            )
            return done.stdout.decode().strip()

        git("add", "--all")
        return git("write-tree")


class Stamps:
    """Counts the tests of each file down to zero; writes the stamp if none failed.

    With pytest-xdist the workers collect and deselect, the controller counts and writes.
    """

    def __init__(self, folder: Path, *, writes: bool) -> None:
        self._folder = folder
        self._writes = writes
        self._left: Counter[str] = Counter()
        self._spoiled: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        done = [item for item in items if self._stamp(item.nodeid).exists()]
        if done:
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item not in set(done)]
        self._expect([item.nodeid for item in items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._expect(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = _file(report.nodeid)
        if report.failed or report.skipped:
            self._spoiled.add(file)
        if report.when != "teardown":
            return
        self._left[file] -= 1
        if self._writes and self._left[file] == 0 and file not in self._spoiled:
            self._stamp(report.nodeid).parent.mkdir(parents=True, exist_ok=True)
            self._stamp(report.nodeid).touch()

    def _expect(self, ids: list[str]) -> None:
        """Each worker collects the same tests: the last one's count holds."""
        self._left = Counter(map(_file, ids))

    def _stamp(self, node_id: str) -> Path:
        return self._folder / _file(node_id)


def _file(node_id: str) -> str:
    return node_id.partition("::")[0]
