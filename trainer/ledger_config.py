"""What the ledger takes of a configuration, apart from it: who makes this needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.core.config import Alarms, Run


@dataclass(frozen=True, slots=True)
class LedgerConfig:
    """What the ledger takes of a configuration.

    `tasks`: their names. `tracks`: of all policy servers, whose checkpoints are kept. `min_groups`:
    fewest of an update. The others: see [trainer].
    """

    run: Run
    tasks: Sequence[str]
    tracks: Sequence[str]
    alarms: Alarms
    min_groups: int
    max_grad_norm: float
    snapshot_every: int
    keep_checkpoints: int
