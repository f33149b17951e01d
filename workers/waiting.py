"""Attempts that wait for an unavailable service: their deadlines are extended meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.transitions.episodes import ClaimedEpisode

Attempt = tuple[str, int]  # episode_id, fence


class WaitingAttempts:
    """The waiting attempts of a process. Each belongs to one thread; another one calls `away`."""

    def __init__(self) -> None:
        self._policies: dict[Attempt, LivePolicy | None] = {}

    @contextmanager
    def attempt(self, claimed: ClaimedEpisode) -> Iterator[Callable[[LivePolicy | None], None]]:
        """Yield a function that the attempt calls with what it waits for.

        That is the answer of a policy, or None for a service that is known to be unavailable.
        """
        key = claimed.episode_id, claimed.fence

        def wait_for(policy: LivePolicy | None) -> None:
            self._policies[key] = policy

        try:
            yield wait_for
        finally:
            self._policies.pop(key, None)

    def away(self, is_live: Callable[[LivePolicy], bool]) -> set[Attempt]:
        """Return attempts whose service is unavailable, or whose policy is no longer live."""
        waiting = list(self._policies.items())
        return {key for key, policy in waiting if policy is None or not is_live(policy)}
