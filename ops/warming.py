"""What `agentrl warmstart` says while it works and when it is done."""

import sys

from core.errors import AgentRLError
from ops.school import Progress, Watch
from ops.tables import console, plain
from ops.warmstart import WarmstartOptions, WarmstartReport, warmstart

EVERY = 20  # steps between two lines where nothing was measured


class Interrupted(AgentRLError):
    """Ctrl-C: nothing is kept."""


def make(options: WarmstartOptions, watch: Watch | None = None) -> None:
    """Warm-start, a line of progress now and then on stderr, the skills at the end.

    Raises Interrupted, and what `warmstart` does.
    """
    try:
        report = warmstart(options, watch or told)
    except KeyboardInterrupt:
        if options.out.exists():  # its last act was to make it
            raise
        raise Interrupted(
            "interrupted: nothing is kept", mend="the same command begins anew"
        ) from None
    show(report)


def told(progress: Progress) -> None:
    """One line of progress."""
    if progress.step % EVERY and not progress.success:
        return
    success = " · ".join(f"{task} {mean:.0%}" for task, mean in progress.success.items())
    print(
        f"phase {progress.phase + 1} · step {progress.step}/{progress.steps} · "
        f"loss {progress.loss:.3f} · {progress.tokens_per_s:.0f} tokens/s"
        + (f" · sampled success: {success}" if success else ""),
        file=sys.stderr,
    )


def show(report: WarmstartReport) -> None:
    """The policy that was made, on held-out items."""
    table = plain("task", "sampled", "pass@8", "greedy", "items")
    for task, skill in report.skills.items():
        shares = (f"{share:.1%}" for share in (skill.sampled, skill.pass_at_8, skill.greedy))
        table.add_row(task, *shares, str(skill.items))
    out = console()
    out.print(
        f"{report.out}: {report.parameters:,} parameters, {report.demonstrations} demonstrations, "
        f"{report.steps} steps, {report.seconds:.0f} s"
    )
    out.print(table)
