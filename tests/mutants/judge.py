"""Judge the one mutant that lies in the current folder: cosmic-ray's test command.

Runs the gate's tests that execute the changed line, those of the module's own test file first,
until one fails. A line outside functions is executed at import: every test of the module judges
it. A line that no test executes in its own process is judged by all tests of its package. Exits
with 0 if the mutant survives.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from coverage import CoverageData

TEST_TIMEOUT_S = 120  # of one test; the slowest of the gate takes a few seconds on a quiet machine

Test = tuple[str, str]  # path of the test file, name of the function


def changed_line() -> tuple[Path, int]:
    """Path of the mutated module and its first changed line."""
    diff = subprocess.run(["git", "diff", "-U0"], check=True, capture_output=True, text=True).stdout
    path = re.search(r"^--- a/(.+)$", diff, re.MULTILINE)
    line = re.search(r"^@@ -(\d+)", diff, re.MULTILINE)
    if path is None or line is None:
        sys.exit("no mutant here: `git diff` is empty")
    return Path(path.group(1)), int(line.group(1))


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


def covering(path: Path, line: int, seconds: dict[str, dict[str, float]]) -> set[Test]:
    """Tests that execute `line`; what a fixture executes, every test of the file may judge."""
    data = CoverageData(os.environ["COVERAGE_FILE"])
    data.read()
    contexts = data.contexts_by_lineno(str(path))
    source = subprocess.run(["git", "show", f"HEAD:{path}"], check=True, capture_output=True).stdout
    lines = statement_lines(ast.parse(source), line) or contexts
    found: set[Test] = set()
    for context in {context for each in lines for context in contexts.get(each, []) if context}:
        test, _, phase = context.rpartition("|")
        file, _, name = test.partition("::")
        names = {name.partition("[")[0]} if phase == "run" else set(seconds.get(file, {}))
        found |= {(file, name) for name in names if name in seconds.get(file, {})}
    return found


def survives(tests: Iterable[Test]) -> bool:
    """Whether all of `tests` pass."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
        chosen.write("\n".join("::".join(test) for test in tests))
        chosen.flush()
        options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}"]
        options += ["-m", os.environ["MUTANTS_MARKS"], f"@{chosen.name}"]
        return (
            subprocess.run([sys.executable, "-m", "pytest", *options], check=False).returncode == 0
        )


def main() -> None:
    seconds = json.loads(Path(os.environ["MUTANTS_SECONDS"]).read_text())
    budget = float(os.environ["MUTANTS_BUDGET_S"])
    path, line = changed_line()
    package = f"tests/{path.parts[0]}/"
    tests = covering(path, line, seconds)
    if not tests:
        print("no test executes this line in its own process: the package's tests judge it")
        tests = {
            (file, name) for file in seconds if file.startswith(package) for name in seconds[file]
        }
    own = {test for test in tests if Path(test[0]).stem == f"test_{path.stem}"}
    others = sorted(tests - own, key=lambda test: seconds[test[0]][test[1]])
    while others and sum(seconds[file][name] for file, name in others) > budget:
        others.pop()
    print(
        f"{path}:{line}: {len(tests)} tests, {len(own)} of its own file; run: {len(others)} others"
    )
    sys.stdout.flush()
    sys.exit(0 if all(survives(chosen) for chosen in (sorted(own), others) if chosen) else 1)


if __name__ == "__main__":
    main()
