"""The output of `agentrl warmstart`."""

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agentrl.ops.interruption import Interrupted
from agentrl.ops.tables import console, plain
from agentrl.ops.warmstart.cloning_trainer import Progress, Watch
from agentrl.ops.warmstart.demonstrations import Preparation
from agentrl.ops.warmstart.options import WarmstartOptions, WarmstartReport
from agentrl.ops.warmstart.warmstart import warmstart

EVERY_S = 10.0  # seconds between two lines where nothing was measured


def make(options: WarmstartOptions, watch: Watch | None = None) -> None:
    """Run the warm start with progress lines on stderr, and the skills at the end.

    Raises Interrupted, and the errors of `warmstart`.
    """
    lines = ProgressLines()
    try:
        report = warmstart(
            options,
            watch or lines,
            lines.show_preparation,
            lines.show_continuation,
            lines.show_warning,
        )
    except KeyboardInterrupt:
        if options.out.exists():  # its last act was to make it
            raise
        raise Interrupted("interrupted: the progress is kept") from None
    show(report)


class ProgressLines:
    """Prints one line every few seconds, and after each measurement, with or without a terminal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._printed = -math.inf

    def __call__(self, progress: Progress) -> None:
        if not progress.success and not self._is_due():
            return
        success = " · ".join(f"{task} {mean:.0%}" for task, mean in progress.success.items())
        left = f" · {progress.left_s / 60:.0f} min left" if progress.left_s >= 0 else ""
        self._print(
            f"phase {progress.phase + 1} · step {progress.step}/{progress.steps} · "
            f"loss {progress.loss:.3f} · {progress.tokens_per_s:.0f} tokens/s{left}"
            + (f" · sampled success on training items: {success}" if success else "")
        )

    def show_continuation(self, step: int, folder: Path) -> None:
        self._print(f"continues the interrupted warm start in {folder} after step {step}")

    def show_warning(self, text: str) -> None:
        self._print(f"warning: {text}")

    def show_preparation(self, preparation: Preparation) -> None:
        if self._is_due():
            self._print(
                f"phase {preparation.phase + 1} · playing expert episodes of {preparation.task}: "
                f"{preparation.played:,} / {preparation.episodes:,}"
            )

    def _is_due(self) -> bool:
        return self._clock() - self._printed >= EVERY_S

    def _print(self, line: str) -> None:
        self._printed = self._clock()
        print(line, file=sys.stderr, flush=True)


def show(report: WarmstartReport) -> None:
    """Print the skills of the created policy on held-out items."""
    table = plain("task", "sampled", "pass@8", "greedy", "held-out items")
    for task, skill in report.skills.items():
        shares = (f"{share:.1%}" for share in (skill.sampled, skill.pass_at_8, skill.greedy))
        table.add_row(task, *shares, str(skill.items))
    out = console()
    out.print(
        f"{report.out}: {report.parameters:,} parameters, {report.demonstrations} demonstrations, "
        f"{report.steps} steps, {report.seconds:.0f} s"
    )
    if report.skills:
        out.print(table)
