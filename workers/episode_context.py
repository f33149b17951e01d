"""Objects that all episodes of a process share, and the estimate of the database's clock."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from agentrl.core.config.sections import Model, Sampling
from agentrl.core.structs import prepare_structs
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.episode import EpisodeContext
from agentrl.workers.policies.client import CompletionClient


class Clock:
    """The database's clock, estimated from the offset that each heartbeat measures.

    `clock`: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._offset = 0.0

    def set(self, database_s: float) -> None:
        self._offset = database_s - self._clock()

    def now(self) -> float:
        return self._clock() + self._offset


def make_context(
    model: Model, sampling: Sampling, client: CompletionClient, clock: Clock, stop: threading.Event
) -> EpisodeContext:
    """Create the objects that all episodes share. Raises ConfigError for a wrong model."""
    prepare_structs()
    template = ChatTemplate.load(Path(model.path), model.chat_template)
    template.check(model.call_style)
    return EpisodeContext(
        template=template,
        style=model.call_style,
        stop_ids=sorted(template.stop_ids),
        sampling=sampling,
        client=client,
        clock=clock.now,
        stop=stop,
    )
