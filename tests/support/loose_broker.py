"""A broker that does whatever a broker may: reorder, repeat, lose, refuse, confirm and not say so.

Messages travel as bytes. Publishers and consumers pause (`pause_points.py`); the test answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pause_points import pause

from agentrl.broker.api import Delivery, Waiting
from agentrl.broker.messages import EpisodeFinished, Message, decode, encode
from agentrl.broker.queue_names import EVENTS
from agentrl.core.errors import BrokerError, MessageRefused

# what becomes of a publish: the queues that get the message, and what the publisher is told
PUBLISHED: dict[str, tuple[tuple[str, ...], type[Exception] | None]] = {
    "confirmed": (("recorder", "trainer"), None),
    "unsure": (("recorder", "trainer"), BrokerError),
    "half": (("trainer",), BrokerError),
    "other half": (("recorder",), BrokerError),
    "away": ((), BrokerError),
    "refused": ((), MessageRefused),
}


@dataclass
class LooseBroker:
    """The two queues of a run.

    `published`: (episode, fence) of bodies that both queues took; `lost`: of those the recorder
    never got.
    """

    queues: dict[str, list[bytes]] = field(default_factory=lambda: {"recorder": [], "trainer": []})
    published: set[tuple[str, int]] = field(default_factory=set)
    lost: set[tuple[str, int]] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)

    def publish(
        self,
        exchange: str,
        _run_id: str,
        message: Message,
        *,
        waiting: Waiting | None = None,  # noqa: ARG002 - it answers at once
    ) -> None:
        if exchange == EVENTS:
            return
        reached, error = PUBLISHED[pause("publish", message)]
        for name in reached:
            self.queues[name].append(encode(message))
        if len(reached) == len(self.queues) and isinstance(message, EpisodeFinished):
            self.published.add((message.trajectory.episode_id, message.trajectory.fence))
        pause("published")
        if error is not None:
            raise error("the broker says so")

    def close(self) -> None: ...

    def lose(self, name: str, place: int) -> None:
        """One message of a queue, if it has any, is gone."""
        waiting = self.queues[name]
        if not waiting:
            return
        message = decode(waiting.pop(place % len(waiting)))
        assert isinstance(message, EpisodeFinished)
        if name == "recorder":
            self.lost.add((message.trajectory.episode_id, message.trajectory.fence))

    def repeat(self, name: str, place: int) -> None:
        """One message of a queue, if it has any, comes once more."""
        waiting = self.queues[name]
        if waiting:
            waiting.append(waiting[place % len(waiting)])


class LooseConsumer:
    """Of one queue; what it holds goes back when its process dies (`abandon`)."""

    def __init__(self, broker: LooseBroker, name: str) -> None:
        self._broker = broker
        self._waiting = broker.queues[name]
        self._held: list[bytes] = []

    def receive(self, _limit: int, timeout_s: float) -> Sequence[Delivery]:
        if timeout_s == 0:
            return ()
        places: list[int] = pause("receive")
        taken = []
        for place in places:
            if self._waiting:
                taken.append(self._waiting.pop(place % len(self._waiting)))
        self._held += taken
        return [Delivery(decode(wire), wire, wire) for wire in taken]

    def is_empty(self) -> bool:
        return not self._waiting

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        pause("ack")
        for delivery in deliveries:
            self._held.remove(delivery.wire)

    def refuse(self, delivery: Delivery, reason: str) -> None:
        self._held.remove(delivery.wire)
        self._broker.refused.append(reason)

    def abandon(self) -> None:
        self._waiting += self._held
        self._held = []

    def close(self) -> None:
        self.abandon()
