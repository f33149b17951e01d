"""Judge one mutant with the gate's tests that execute its line.

Those of the module's own test file come first, then the others, the fastest first, until one
fails. A line outside functions is executed at import: every test of the module judges it. A line
that no test executes in its own process is judged by all tests of its package.
"""

import ast
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from coverage import CoverageData

TEST_TIMEOUT_S = 120  # of one test; the slowest of the gate takes a few seconds on a quiet machine
# Imported once, so that each mutant's process starts at once. None of ours: they are what changes.
LIBRARIES = (
    "alembic.command", "docker", "numpy", "peft", "pika", "psycopg", "sqlalchemy", "torch",
    "transformers.models.qwen3.modeling_qwen3", "urllib3",
)  # fmt: skip

HUNG = "ended by the time limit"

Test = tuple[str, str]  # path of the test file, name of the function
Seconds = dict[str, dict[str, float]]  # of every test that passes, by file and function


def statement_lines(tree: ast.Module, line: int) -> range | None:
    """Lines of the statement around `line`, a compound one's head; None: it runs at import."""
    heads = []
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    if not any(f.body[0].lineno <= line <= (f.end_lineno or 0) for f in functions):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.excepthandler):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            if node.lineno <= line <= last:
                heads.append(range(node.lineno, last + 1))
    return max(heads, key=lambda head: head.start, default=range(line, line + 1))


def covering(data: CoverageData, path: Path, source: str, line: int, seconds: Seconds) -> set[Test]:
    """Tests that execute `line`; what a fixture executes, every test of the file may judge."""
    contexts = data.contexts_by_lineno(str(path))
    lines = statement_lines(ast.parse(source), line) or contexts
    found: set[Test] = set()
    for context in {context for each in lines for context in contexts.get(each, []) if context}:
        test, _, phase = context.rpartition("|")
        file, _, name = test.partition("::")
        names = {name.partition("[")[0]} if phase == "run" else set(seconds.get(file, {}))
        found |= {(file, name) for name in names if name in seconds.get(file, {})}
    return found


def in_order(tests: set[Test], path: Path, seconds: Seconds, budget_s: float) -> list[list[Test]]:
    """The tests to run, first those of the module's own file; others as far as `budget_s` goes."""
    own = {test for test in tests if Path(test[0]).stem == f"test_{path.stem}"}
    others = sorted(tests - own, key=lambda test: seconds[test[0]][test[1]])
    while len(others) > 1 and sum(seconds[file][name] for file, name in others) > budget_s:
        others.pop()
    return [part for part in (sorted(own), others) if part]


class Judge:
    """Runs tests in forks of this process, whose libraries are imported already."""

    def __init__(self, tree: Path, marks: str, timeout_s: float) -> None:
        self._tree, self._marks, self._timeout_s = tree, marks, timeout_s
        for name in LIBRARIES:
            importlib.import_module(name)

    def survives(self, parts: Iterable[Sequence[Test]], output: Path) -> bool:
        """Whether all of the tests pass in time; what pytest prints goes to `output`."""
        until = time.monotonic() + self._timeout_s
        with output.open("w") as opened:
            return all(self._passes(part, opened.fileno(), until) for part in parts)

    def _passes(self, tests: Sequence[Test], output: int, until: float) -> bool:
        child = os.fork()
        if not child:
            self._run(tests, output)
        status = None
        while status is None and time.monotonic() < until:
            ended, code = os.waitpid(child, os.WNOHANG)
            status = code if ended else None
            time.sleep(0.05)
        with suppress(ProcessLookupError):  # what tests started, too
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
            os.write(output, HUNG.encode())
        return status == 0

    def _run(self, tests: Sequence[Test], output: int) -> None:
        """In the fork: pytest, and no way back."""
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(self._tree)
        os.environ["PYTHONPATH"] = sys.path[0] = str(self._tree / "src")
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True  # a mutant lives for less than a file's time stamp tells
        options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}"]
        options += [
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",
        ]  # of what is imported already
        code = 1
        try:
            code = pytest.main([*options, "-m", self._marks, *("::".join(test) for test in tests)])
        except BaseException:  # a fork never returns into its parent's code
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
