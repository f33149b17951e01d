"""Report which share of a seeded sample of single-line mutants the gate kills: `make mutants`.

Works in a clone of one commit under build/mutants/, never in the working tree. What is there from
an interrupted run is used again: coverage, the sample, the verdicts so far.
"""

import argparse
import json
import os
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from difflib import unified_diff
from pathlib import Path
from typing import Any

from cosmic_ray.mutating import use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult
from coverage import CoverageData
from judge import HUNG, Judge, Seconds, Test, covering, in_order

HERE = Path(__file__).parent
CONFIG = HERE / "cosmic-ray.toml"


class Run:
    """One commit, its clone, and what was found out about it."""

    def __init__(self, commit: str, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder / commit[:12]
        self._commit, self._settings = commit, settings
        self._gate = settings["filters"]["gate"]
        self._tree = self.folder / "tree"
        self._coverage = self.folder / "coverage.sqlite"
        self._seconds = self.folder / "seconds.json"
        self._session = self.folder / "session.sqlite"

    def clone(self) -> None:
        """Check the commit out; an interrupted run may have left a mutant behind."""
        if not self._tree.exists():
            self._call("git", "clone", "-q", "--shared", "--no-checkout", ".", str(self._tree))
        self._call("git", "-C", str(self._tree), "checkout", "-q", "-f", self._commit)

    def cover(self) -> None:
        """Run the gate once and keep which test executes which line, and how long it takes."""
        if self._seconds.exists():
            return
        print("Running the gate once to see which test executes which line", flush=True)
        options = self.folder / "coverage.ini"
        packages = ",".join(self._settings["module-path"])
        options.write_text(f"[run]\nsource = {packages}\nrelative_files = true\n")
        report = self.folder / "times.xml"
        arguments = ["--cov", f"--cov-config={options}", "--cov-context=test", "--cov-report="]
        arguments += [f"--ignore={folder}" for folder in self._gate["ignore"]]
        arguments += ["-q", f"--junitxml={report}", "-m", self._gate["marks"]]
        self._call(sys.executable, "-m", "pytest", *arguments, folder=self._tree, may_fail=True)
        self._seconds.write_text(json.dumps(passed_tests(report)))

    def sample(self) -> None:
        """Let cosmic-ray list all mutants and keep the sample."""
        draft = self.folder / "draft.sqlite"
        if not self._session.exists():
            cosmic_ray = str(Path(sys.executable).with_name("cosmic-ray"))
            self._call(cosmic_ray, "init", str(CONFIG), str(draft), folder=self._tree)
            reducer = [sys.executable, str(HERE / "sample.py"), str(CONFIG), str(draft)]
            self._call(*reducer, folder=self._tree)
            draft.rename(self._session)

    def execute(self) -> None:
        """Judge the mutants that have no verdict yet."""
        seconds: Seconds = json.loads(self._seconds.read_text())
        data = CoverageData(str(self._coverage))
        data.read()
        judge = Judge(self._tree, self._gate["marks"], self._settings["timeout"])
        with use_db(self._session, WorkDB.Mode.open) as session:
            items = session.pending_work_items
            for item in items[:2]:  # a judge that fails sound code says nothing about mutants
                tests = chosen_tests(self._tree, item.mutations[0], data, seconds)
                fast = sorted(tests, key=lambda test: seconds[test[0]][test[1]])[:5]
                if not judge.survives([fast], output := self.folder / "output.txt"):
                    sys.exit(f"The tests fail without a mutant:\n{output.read_text()}")
            for number, item in enumerate(items, 1):
                mutation = item.mutations[0]
                tests = chosen_tests(self._tree, mutation, data, seconds)
                parts = in_order(tests, mutation.module_path, seconds, self._gate["budget_s"])
                result = judged(self._tree, mutation, parts, judge)
                session.set_result(item.job_id, result)
                verdict = result.test_outcome.value if result.test_outcome else "no verdict"
                ran = f"{sum(map(len, parts))} of {len(tests)} tests"
                print(f"{number} of {len(items)}: {place(mutation)} {verdict} ({ran})", flush=True)

    def report(self) -> bool:
        """Print the share per package and each survivor's diff; whether the share suffices."""
        with use_db(self._session, WorkDB.Mode.open) as session:
            verdicts = [
                (item.mutations[0], result) for item, result in session.completed_work_items
            ]
        totals: Counter[str] = Counter()
        killed: Counter[str] = Counter()
        for mutation, result in sorted(verdicts, key=lambda v: (v[0].module_path, v[0].start_pos)):
            package = mutation.module_path.parts[0]
            totals[package] += 1
            killed[package] += result.is_killed
            if not result.is_killed:
                print(f"\nSURVIVED {place(mutation)} {mutation.operator_name}\n{result.diff}")
        print(f"\nCommit {self._commit[:12]}: mutants killed")
        for package, total in sorted(totals.items()):
            print(f"  {package:<8} {killed[package]:>3} of {total}")
        share = killed.total() / max(1, totals.total())
        hung = sum(HUNG in (result.output or "") for _, result in verdicts)
        print(f"  all      {killed.total():>3} of {totals.total()} ({share:.1%})")
        print(f"  {hung} of them by the time limit")
        return share >= float(self._gate["minimum"])

    def _call(self, *command: str, folder: Path | None = None, may_fail: bool = False) -> None:
        environment = os.environ | {
            "COVERAGE_FILE": str(self._coverage),
            "PYTHONPATH": str(self._tree / "src"),
        }
        subprocess.run(command, check=not may_fail, cwd=folder, env=environment)


def place(mutation: MutationSpec) -> str:
    return f"{mutation.module_path}:{mutation.start_pos[0]}"


def chosen_tests(
    tree: Path, mutation: MutationSpec, data: CoverageData, seconds: Seconds
) -> set[Test]:
    """Tests that execute the line; where none does, all of the package's folder."""
    path = mutation.module_path
    source = (tree / path).read_text()
    package = f"tests/{path.parts[0]}/"
    return covering(data, path, source, mutation.start_pos[0], seconds) or {
        (file, name) for file in seconds if file.startswith(package) for name in seconds[file]
    }


def judged(tree: Path, mutation: MutationSpec, parts: list[list[Test]], judge: Judge) -> WorkResult:
    """The verdict on one mutant, which lies in the tree meanwhile."""
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    output = tree.with_name("output.txt")
    with use_mutation(tree / mutation.module_path, operator, mutation.occurrence) as (old, new):
        survived = judge.survives(parts, output)
    changes = unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return WorkResult(
        worker_outcome=WorkerOutcome.NORMAL,
        output=output.read_text(errors="replace"),
        test_outcome=TestOutcome.SURVIVED if survived else TestOutcome.KILLED,
        diff="\n".join(list(changes)[3:]),
    )


def passed_tests(report: Path) -> Seconds:
    """Seconds of each test function whose cases all pass, by test file."""
    seconds: Seconds = defaultdict(dict)
    bad = set()
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest just wrote it
        file = case.attrib["classname"].replace(".", "/") + ".py"
        name = case.attrib["name"].partition("[")[0]
        if any(case.iter("failure")) or any(case.iter("error")):
            bad.add((file, name))
        elif case.find("skipped") is None:
            seconds[file][name] = seconds[file].get(name, 0.0) + float(case.attrib["time"])
    for file, name in sorted(bad):
        print(f"Judges nothing, because it fails without a mutant: {file}::{name}")
        seconds[file].pop(name, None)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", default="HEAD", help="Commit to mutate. Default: HEAD.")
    parser.add_argument("--folder", type=Path, default=Path("build/mutants"))
    arguments = parser.parse_args()
    named = ["git", "rev-parse", arguments.commit]
    commit = subprocess.run(named, check=True, capture_output=True, text=True).stdout.strip()
    settings = tomllib.loads(CONFIG.read_text())["cosmic-ray"]
    run = Run(commit, arguments.folder.resolve(), settings)
    run.clone()
    run.cover()
    run.sample()
    run.execute()
    sys.exit(0 if run.report() else 1)


if __name__ == "__main__":
    main()
