"""The pool of live policies, and the sampler that draws the policy of the next step.

    registry ─(event, poll)─▶ PolicyPool ─live(), weigh(task)─▶ Sampler.draw() ─▶ a LivePolicy

The sampler is seeded by its episode and attempt, so a replay draws the same tracks.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.errors import PolicyError, StoreUnavailable
from agentrl.core.processes.threads import vital_thread
from agentrl.core.types import CURRENT
from agentrl.db.registry.checkpoints import LivePolicy, live_policies
from agentrl.db.store import Store
from agentrl.workers.policies.adaptive import Weigh
from agentrl.workers.policies.statistics import PoolConfig, read_weights

LOOK_S = 0.02  # least time between two looks at the registry, whoever wants one
PERIOD_S = 1.0  # most time between two looks
PATIENCE_S = 1.0  # with a store that is away, before what is known stands
LEARN_S = 5.0  # between two looks at how episodes ended

EXTERNAL = "external("  # how the tracks of external models begin

Home = tuple[str, str]  # server_id, checkpoint_id: where a prefix may be held


class NoLivePolicy(PolicyError):
    """No server serves a checkpoint of the run at the moment."""


class Pool(Protocol):
    """The interface that a sampler draws from."""

    def live(self) -> Sequence[LivePolicy]: ...

    def refresh(self, timeout_s: float = 1.0) -> None: ...


class PolicyPool:
    """The live policies, read from the registry by one thread.

    It reads every `period_s`, and at once when `wanted` is set by an event or a refusal.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[LivePolicy]],
        *,
        period_s: float = PERIOD_S,
        look_s: float = LOOK_S,
        learn: Callable[[], Mapping[str, Weigh]] | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        """`learn`: computes the track weights of strategy `adaptive`, every LEARN_S.

        `close`: called after the last read.
        """
        self._read = read
        self._period_s = period_s
        self._look_s = look_s
        self._learn = learn
        self._learn_at = 0.0
        self._close = close
        self._changed = threading.Condition()
        self._policies: Sequence[LivePolicy] = ()
        self._weigh: Mapping[str, Weigh] = {}
        self._looks_begun = self._looks_done = 0
        self.refresh_wanted = threading.Event()
        self._stop = threading.Event()
        self._thread = vital_thread("policy-pool", self._follow)
        self._thread.start()

    @classmethod
    def of_run(
        cls, store: Store, run_id: str, config: PoolConfig, *, period_s: float = PERIOD_S
    ) -> "PolicyPool":
        """Create the pool of a run's registry. External models alone do not make a policy live."""
        own = store.one_thread()

        def read() -> Sequence[LivePolicy]:
            live = own.ask(lambda session: live_policies(session, run_id), patience_s=PATIENCE_S)
            acting = [each for each in live if each.track not in config.silent]
            return acting if any(not each.track.startswith(EXTERNAL) for each in acting) else ()

        def learn() -> Mapping[str, Weigh]:
            return read_weights(own, run_id, config)

        learns = config.sampling.strategy == "adaptive"
        return cls(read, period_s=period_s, learn=learn if learns else None, close=own.close)

    def live(self) -> Sequence[LivePolicy]:
        """Return the live policies of the last read."""
        return self._policies

    def weigh(self, task: str) -> Weigh | None:
        """Return the track weights of a task; None if they are not learned."""
        return self._weigh.get(task)

    def refresh(self, timeout_s: float = 1.0) -> None:
        """Read the registry now; return when it is read or `timeout_s` is over."""
        with self._changed:
            next_look = self._looks_begun + 1
            self.refresh_wanted.set()
            self._changed.wait_for(lambda: self._looks_done >= next_look, timeout_s)

    def close(self) -> None:
        self._stop.set()
        self.refresh_wanted.set()
        self._thread.join(5)
        if self._close is not None:
            self._close()

    def _follow(self) -> None:
        while not self._stop.is_set():
            self.refresh_wanted.clear()
            self._looks_begun += 1
            self._look()
            with self._changed:
                self._looks_done = self._looks_begun
                self._changed.notify_all()
            self._stop.wait(self._look_s)
            self.refresh_wanted.wait(self._period_s)

    def _look(self) -> None:
        try:
            self._policies = self._read()
        except StoreUnavailable:  # which the store has said; steps go on with what was live
            return
        if self._learn is None or time.monotonic() < self._learn_at:
            return
        self._learn_at = time.monotonic() + LEARN_S
        with suppress(StoreUnavailable):  # the former weights stay
            self._weigh = self._learn()


class Sampler:
    """Draws the policy of each step of one episode."""

    def __init__(self, pool: Pool, config: Sampling, seed: str, weigh: Weigh | None = None) -> None:
        """`seed`: identifies episode and attempt. `weigh`: track weights of strategy `adaptive`."""
        self._pool = pool
        self._config = config
        self._seed = seed
        self._weigh = weigh
        self._random = random.Random(seed)
        self._last: LivePolicy | None = None
        self._repeats = 0
        self._tokens_seen: dict[Home, int] = {}  # tokens of this episode that a server has seen
        self._refused: set[Home] = set()  # at this step
        self._weights: tuple[Sequence[str], Mapping[str, float]] = ((), {})

    def seed(self) -> int:
        """Return a seed for the tokens of one step."""
        return self._random.getrandbits(31)

    def weights(self) -> Mapping[str, float]:
        """Return the latest weights of `adaptive` in this episode; empty for other strategies."""
        return self._weights[1]

    def draw(self, *, wait_s: float, stop: threading.Event, exact: bool = False) -> LivePolicy:
        """Draw a live policy; wait up to `wait_s` for one. Raises NoLivePolicy.

        `exact`: only a policy that reads token ids.
        """
        deadline = time.monotonic() + wait_s
        while not (live := self._live(exact=exact)):
            if time.monotonic() > deadline or stop.is_set():
                raise NoLivePolicy("no policy server is live", hint="see `agentrl status CONFIG`")
            self._pool.refresh()
            stop.wait(0.1)
        return self._choose(live)

    def is_live(self, policy: LivePolicy) -> bool:
        """Whether its server still serves anything of the run."""
        return is_live(policy, self._pool.live())

    def count_tokens(self, tokens: int) -> None:
        """Record that the policy drawn last has seen the first `tokens` tokens of the episode."""
        if self._last is not None:
            self._tokens_seen[_home(self._last)] = tokens
        self._refused.clear()

    def note_failure(self) -> None:
        """Exclude the policy drawn last from this step, and read the registry again."""
        if self._last is not None:
            home = _home(self._last)
            self._refused.add(home)
            self._tokens_seen.pop(home, None)
        self._last = None
        self._pool.refresh()

    def _live(self, *, exact: bool) -> list[LivePolicy]:
        """Return the candidates; policies that refused at this step only if there is no other."""
        live = [each for each in newest_per_server(self._pool.live()) if each.exact or not exact]
        return [each for each in live if _home(each) not in self._refused] or live

    def _choose(self, live: Sequence[LivePolicy]) -> LivePolicy:
        last = self._last
        if last and self._repeats < self._config.sticky_steps and last in live:
            self._repeats += 1
            return last
        tracks = sorted({policy.track for policy in live})
        weights = self._shares(tracks)
        (track,) = self._random.choices(tracks, [weights[each] for each in tracks])
        self._last, self._repeats = self._nearest([p for p in live if p.track == track], last), 1
        return self._last

    def _shares(self, tracks: Sequence[str]) -> Mapping[str, float]:
        if self._config.strategy != "adaptive" or self._weigh is None:
            return shares(tracks, self._config)
        if self._weights[0] != tracks:
            source = random.Random(f"{self._seed}/{' '.join(tracks)}")
            self._weights = tracks, self._weigh(tracks, source)
        return self._weights[1]

    def _nearest(self, choices: Sequence[LivePolicy], last: LivePolicy | None) -> LivePolicy:
        """Return the policy with the longest cached prefix, else one on the server drawn last."""

        def nearness(policy: LivePolicy) -> tuple[int, bool]:
            tokens = self._tokens_seen.get(_home(policy), 0)
            return tokens, last is not None and policy.server_id == last.server_id

        best = max(map(nearness, choices))
        return self._random.choice([each for each in choices if nearness(each) == best])


def is_live(policy: LivePolicy, live: Sequence[LivePolicy]) -> bool:
    """Whether one of the live policies is on the policy's server."""
    return any(each.server_id == policy.server_id for each in live)


def newest_per_server(live: Sequence[LivePolicy]) -> list[LivePolicy]:
    """Keep one policy per server and track, the one served last.

    During a swap the old and the new one are both live; after a rollback the new version is lower.
    """
    return list({(policy.server_id, policy.track): policy for policy in live}.values())


def shares(tracks: Sequence[str], config: Sampling) -> dict[str, float]:
    """Return the probability of each live track; live tracks replace missing ones.

    `mixed`: `stale_share` for all lagged tracks together, the rest for `current`; external models
    count as lagged only if no other track does. `adaptive` without statistics is `uniform`.
    """
    if config.strategy in ("uniform", "adaptive"):
        return dict.fromkeys(tracks, 1 / len(tracks))
    if config.strategy == "weighted":
        weights = {track: config.weights.get(track, 0.0) for track in tracks}
        total = sum(weights.values())
        return {t: w / total if total else 1 / len(tracks) for t, w in weights.items()}
    others = [track for track in tracks if track != CURRENT]
    stale = [track for track in others if not track.startswith(EXTERNAL)] or others
    share = config.stale_share if config.strategy == "mixed" else 0.0
    if CURRENT not in tracks:
        share = 1.0
    elif not stale:
        share = 0.0
    probabilities = dict.fromkeys(tracks, 0.0) | {track: share / len(stale) for track in stale}
    return probabilities | ({CURRENT: 1.0 - share} if CURRENT in tracks else {})


def _home(policy: LivePolicy) -> Home:
    return policy.server_id, policy.checkpoint_id
