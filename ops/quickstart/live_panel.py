"""The live panel of the quickstart."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.core.config.config import Config
from agentrl.core.types import CURRENT
from agentrl.db.queries import progress
from agentrl.db.queries.progress import Totals
from agentrl.db.store import Store

PLAIN_EVERY_S = 10.0  # between lines where there is no terminal
AGES = {"fresh": CURRENT, "lagged": "lagged"}  # names of `progress.staleness`, as tracks


class LivePanel:
    """A live panel on a terminal; occasional lines elsewhere.

    Rates and ETA count from the first `training`, because a resumed run has older totals.
    """

    def __init__(
        self, console: Console, config: Config, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._console = console
        self._total = config.run.stop_updates or 0
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._terminal = console.is_terminal
        self._first: tuple[float, Totals] | None = None
        self._printed, self._line = 0.0, ""

    def __enter__(self) -> "LivePanel":
        if self._terminal:
            self._live.start()
        self._show("starting the processes …", None, "starting")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._terminal:
            self._live.stop()

    def measuring(self, version: int, done: int, total: int) -> None:
        """Show that held-out items are being measured at `version`."""
        text = f"evaluating version {version} on held-out items: {done} / {total} episodes"
        self._show(text, (done, total), text)

    def training(self, totals: Totals, store: Store, run_id: str) -> None:
        """Show the state of the run from its rows."""
        self._first = self._first or (self._clock(), totals)
        began, first = self._first
        success = store.ask(lambda s: progress.recent_success(s, run_id))
        mix = store.ask(lambda s: progress.policy_mix(s, run_id))
        staleness = store.ask(lambda s: progress.staleness(s, run_id))
        ages = [f"{AGES[kind]} {mean:.1f}" for kind, mean in sorted(staleness.items())]
        groups = store.ask(lambda s: progress.groups_by_state(s, run_id))
        seconds, updates = self._clock() - began, totals.updates - first.updates
        episodes = totals.episodes - first.episodes
        tokens = totals.sampled_tokens - first.sampled_tokens
        steps = max(sum(mix.values()), 1)
        figures = {
            "update": f"{totals.updates} / {self._total}",
            "recent success": progress.percent_by_task(success) or "–",
            "episodes/s": f"{episodes / seconds:.1f}" if updates else "–",
            "sampled tokens/s": f"{tokens / seconds:.0f}" if updates else "–",
            "steps by policy": " · ".join(f"{t} {n / steps:.0%}" for t, n in sorted(mix.items()))
            or "–",
            "their age in updates": " · ".join(ages) or "–",
            "groups not trained": f"{groups.get('filtered', 0)} whose rewards varied too little · "
            f"{groups.get('stale', 0)} sampled too many updates ago",
            "ETA": f"{seconds / updates * (self._total - totals.updates):.0f} s"
            if updates
            else "–",
        }
        table = Table.grid(padding=(0, 2))
        for name, value in figures.items():
            table.add_row(Text(name, style="bold"), value)
        line = " | ".join(f"{name} {value}" for name, value in figures.items())
        self._show(table, (totals.updates, self._total), f"training: {line}")

    def _show(self, body: RenderableType, bar: tuple[int, int] | None, line: str) -> None:
        if self._terminal:
            parts = [ProgressBar(total=bar[1], completed=bar[0], width=60)] if bar else []
            self._live.update(Group(body, *parts))
        elif self._clock() - self._printed > PLAIN_EVERY_S and line != self._line:
            self._printed, self._line = self._clock(), line
            self._console.print(line, soft_wrap=True, highlight=False)
