"""The ledger's part of the configuration, in its own module so that its users need no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.training import Alarms


@dataclass(frozen=True, slots=True)
class LedgerConfig:
    """The ledger's part of the configuration.

    `tasks`: names. `tracks`: of all policy servers; their checkpoints are kept. `min_groups`: of an
    update. Other fields: see [trainer].
    """

    run: Run
    tasks: Sequence[str]
    tracks: Sequence[str]
    alarms: Alarms
    min_groups: int
    max_grad_norm: float
    snapshot_every: int
    keep_checkpoints: int
