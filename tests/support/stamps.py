"""pytest plugin: skip the test files that already passed on this commit (`make test-all`).

`-p stamps --stamps DIR` writes an empty file under DIR/<tree> for each test file whose selected
tests all passed, at the moment the last of them ends, and deselects the files that have one. <tree>
is git's hash of the tracked files as they are in the working tree, so any edit starts anew. A file
with a test that was skipped because a service is missing gets no stamp.
"""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

MISSING = " is missing ("
"""Part of the reason of each test that was skipped because a service is missing."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stamps", type=Path, help="skip files with a stamp under this directory")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("stamps"):
        folder = config.getoption("stamps").absolute() / _tree(config.rootpath)
        config.pluginmanager.register(Stamps(folder), "stamps-of-this-tree")


def _tree(root: Path) -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True)
        return done.stdout.decode().strip()

    return git("rev-parse", f"{git('stash', 'create') or 'HEAD'}^{{tree}}")


class Stamps:
    """Counts the tests of each file down to zero; writes the stamp if none failed.

    With pytest-xdist the workers collect and deselect, the controller counts and writes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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
        if report.failed or (report.skipped and MISSING in str(report.longrepr)):
            self._spoiled.add(file)
        if report.when != "teardown":
            return
        self._left[file] -= 1
        if self._left[file] == 0 and file not in self._spoiled:
            self._stamp(report.nodeid).parent.mkdir(parents=True, exist_ok=True)
            self._stamp(report.nodeid).touch()

    def _expect(self, ids: list[str]) -> None:
        """Each worker collects the same tests: the last one's count holds."""
        self._left = Counter(map(_file, ids))

    def _stamp(self, node_id: str) -> Path:
        return self._folder / _file(node_id)


def _file(node_id: str) -> str:
    return node_id.partition("::")[0]
