"""Report which share of a seeded sample of single-line mutants the gate kills: `make mutants`.

Works in a clone of one commit under build/mutants/, never in the working tree. What is there from
an interrupted run is used again: coverage, the sample, the verdicts so far.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkResult

HERE = Path(__file__).parent
CONFIG = HERE / "cosmic-ray.toml"


class Run:
    """One commit, its clone, and what was found out about it."""

    def __init__(self, commit: str, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder / commit[:12]
        self._commit, self._settings = commit, settings
        self._tree = self.folder / "tree"
        self._gate = settings["filters"]["gate"]
        self._environment = os.environ | {
            "COVERAGE_FILE": str(self.folder / "coverage.sqlite"),
            "MUTANTS_BUDGET_S": str(self._gate["budget_s"]),
            "MUTANTS_JUDGE": str(HERE / "judge.py"),
            "MUTANTS_MARKS": self._gate["marks"],
            "MUTANTS_PYTHON": sys.executable,
            "MUTANTS_SECONDS": str(self.folder / "seconds.json"),
            "PYTHONPATH": str(self._tree),
        }

    def clone(self) -> None:
        """Check the commit out afresh: an interrupted run leaves a mutant behind."""
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._tree, ignore_errors=True)
        self._call(
            "git", "clone", "-q", "--shared", "--no-checkout", str(Path.cwd()), str(self._tree)
        )
        self._call("git", "-C", str(self._tree), "checkout", "-q", self._commit)

    def cover(self) -> None:
        """Run the gate once and keep which test executes which line, and how long it takes."""
        if (self.folder / "seconds.json").exists():
            return
        print("Running the gate once to see which test executes which line", flush=True)
        coverage = self.folder / "coverage.ini"
        packages = ",".join(self._settings["module-path"])
        coverage.write_text(f"[run]\nsource = {packages}\nrelative_files = true\n")
        report = self.folder / "times.xml"
        options = ["--cov", f"--cov-config={coverage}", "--cov-context=test", "--cov-report="]
        options += [
            "-q",
            f"--junitxml={report}",
            "-p",
            "no:cacheprovider",
            "-m",
            self._gate["marks"],
        ]
        self._call(sys.executable, "-m", "pytest", *options, may_fail=True)
        (self.folder / "seconds.json").write_text(json.dumps(passed_tests(report)))

    def sample(self) -> None:
        """Let cosmic-ray list all mutants and keep the sample."""
        session, draft = self.folder / "session.sqlite", self.folder / "draft.sqlite"
        if not session.exists():
            self._cosmic_ray("init", str(CONFIG), str(draft))
            self._call(sys.executable, str(HERE / "sample.py"), str(CONFIG), str(draft))
            draft.rename(session)

    def execute(self) -> None:
        self._cosmic_ray("exec", str(CONFIG), str(self.folder / "session.sqlite"))

    def report(self) -> bool:
        """Print the share per package and each survivor's diff; whether the share suffices."""
        with use_db(self.folder / "session.sqlite", WorkDB.Mode.open) as session:
            verdicts = [
                (item.mutations[0], result) for item, result in session.completed_work_items
            ]
        totals: Counter[str] = Counter()
        killed: dict[str, list[WorkResult]] = defaultdict(list)
        for mutation, result in sorted(verdicts, key=lambda v: (v[0].module_path, v[0].start_pos)):
            totals[mutation.module_path.parts[0]] += 1
            if result.test_outcome is TestOutcome.SURVIVED:
                place = f"{mutation.module_path}:{mutation.start_pos[0]}"
                changes = [each for each in (result.diff or "").splitlines() if each[:1] in "+-"]
                print(f"\nSURVIVED {place} {mutation.operator_name}", *changes[3:], sep="\n")
            else:
                killed[mutation.module_path.parts[0]].append(result)
        print(f"\nCommit {self._commit[:12]}: mutants killed")
        for package, total in sorted(totals.items()):
            print(f"  {package:<8} {len(killed[package]):>3} of {total}")
        found = [result for results in killed.values() for result in results]
        share = len(found) / max(1, len(verdicts))
        hung = sum(result.output == "timeout" for result in found)
        print(f"  all      {len(found):>3} of {len(verdicts)} ({share:.1%})")
        print(f"  {hung} of them by the time limit")
        return share >= float(self._gate["minimum"])

    def _cosmic_ray(self, *arguments: str) -> None:
        self._call(str(Path(sys.executable).with_name("cosmic-ray")), *arguments)

    def _call(self, *command: str, may_fail: bool = False) -> None:
        folder = self._tree if self._tree.exists() else Path.cwd()
        subprocess.run(command, check=not may_fail, cwd=folder, env=self._environment)


def passed_tests(report: Path) -> dict[str, dict[str, float]]:
    """Seconds of each test function whose cases all pass, by test file."""
    seconds: dict[str, dict[str, float]] = defaultdict(dict)
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
    found = subprocess.run(
        ["git", "rev-parse", arguments.commit], check=True, capture_output=True, text=True
    )
    settings = tomllib.loads(CONFIG.read_text())["cosmic-ray"]
    run = Run(found.stdout.strip(), arguments.folder.resolve(), settings)
    run.clone()
    run.cover()
    run.sample()
    run.execute()
    sys.exit(0 if run.report() else 1)


if __name__ == "__main__":
    main()
