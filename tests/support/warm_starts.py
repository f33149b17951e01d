"""Warm starts of seconds."""

from pathlib import Path
from typing import Any

from torch_device import DEVICE

from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.config.sections.tasks import Task
from agentrl.ops.warmstart.options import Phase, WarmstartOptions

OPTIONS = {"style": "compact", "difficulty": "easy", "items": 20, "test_items": 4}
TASKS = {
    "dbbench": Task(options=OPTIONS, max_turns=2),
    "alfworld": Task(options=OPTIONS, max_turns=12),
}
SHORT = Sampling(max_step_tokens=16)  # policies that know nothing measure sooner
PHASES = (
    Phase(noise={}, steps=2, checked=1),
    Phase(noise={"dbbench": 0.5}, steps=9, until=1.0, check_every=3, checked=1),
)


def options(out: Path, **changes: Any) -> WarmstartOptions:
    small: dict[str, Any] = {"episodes": 12, "batch_tokens": 512, "measured": 1, "phases": PHASES}
    small |= {"device": DEVICE, "sampling": SHORT}
    return WarmstartOptions(out=out, tasks=TASKS, **(small | changes))
