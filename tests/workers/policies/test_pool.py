import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_transitions import World
from running import eventually
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.config.sections.tasks import Judge, Task
from agentrl.core.config.sections.training import Teacher
from agentrl.core.errors import PolicyError, StoreUnavailable
from agentrl.db.models.processes import PolicyServer
from agentrl.db.registry import external_policies, policy_servers
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.store import Store
from agentrl.ops.processes.worker import pool_config
from agentrl.workers.policies.adaptive import OffPolicy, learn, make_weigher
from agentrl.workers.policies.pool import PolicyPool, Sampler, newest_per_server, shares

DRAWS = 4000
GO_ON = threading.Event()
CONFIG = Config(tasks={"dbbench": Task()}, sampling=Sampling(strategy="adaptive"))


def _policy(track: str = "current", version: int = 0, server: str = "s") -> LivePolicy:
    return LivePolicy(server, "http://s", track, f"c{version}", version)


class Fixed:
    """A pool that holds what it is given."""

    def __init__(self, *policies: LivePolicy) -> None:
        self.policies: Sequence[LivePolicy] = policies
        self.refreshed = 0

    def live(self) -> Sequence[LivePolicy]:
        return self.policies

    def refresh(self, timeout_s: float = 1.0) -> None:  # noqa: ARG002
        self.refreshed += 1


def _shares(tracks: Sequence[str], **config: Any) -> dict[str, float]:
    """As drawn; they are the shares stated."""
    sampling, pool = Sampling(**config), Fixed(*[_policy(track) for track in tracks])
    sampler = Sampler(pool, sampling, "seed")
    drawn = Counter(sampler.draw(wait_s=0, stop=GO_ON).track for _ in range(DRAWS))
    counted = {track: drawn[track] / DRAWS for track in tracks}
    assert counted == pytest.approx(shares(tracks, sampling), abs=0.03)
    return {track: share for track, share in counted.items() if share}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"strategy": "current"}, {"current": 1.0}),
        ({"strategy": "mixed", "stale_share": 0.25}, {"current": 0.75, "lagged(4)": 0.25}),
        ({"strategy": "mixed", "stale_share": 0.0}, {"current": 1.0}),
        ({"strategy": "uniform"}, {"current": 0.5, "lagged(4)": 0.5}),
        (
            {"strategy": "weighted", "weights": {"current": 1.0, "lagged(4)": 3.0}},
            {"current": 0.25, "lagged(4)": 0.75},
        ),
        ({"strategy": "weighted"}, {"current": 0.5, "lagged(4)": 0.5}),
    ],
)
def test_a_strategy_draws_its_shares(config: dict[str, Any], expected: dict[str, float]) -> None:
    assert _shares(["current", "lagged(4)"], **config) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("strategy", ["current", "mixed", "uniform", "weighted"])
def test_what_a_strategy_lacks_another_track_stands_in_for(strategy: str) -> None:
    assert _shares(["lagged(4)"], strategy=strategy) == {"lagged(4)": 1.0}
    assert set(_shares(["lagged(4)", "pinned(c)"], strategy=strategy)) == {"lagged(4)", "pinned(c)"}


def test_mixed_shares_its_stale_part_among_the_lagged_tracks() -> None:
    shares = _shares(["current", "lagged(1)", "lagged(4)"], stale_share=0.5)
    assert shares == pytest.approx({"current": 0.5, "lagged(1)": 0.25, "lagged(4)": 0.25}, abs=0.03)


def test_the_same_attempt_draws_the_same_policies_and_seeds() -> None:
    pool = Fixed(_policy(), _policy("lagged(4)"))

    def drawn(seed: str) -> list[Any]:
        sampler = Sampler(pool, Sampling(), seed)
        return [(sampler.draw(wait_s=0, stop=GO_ON), sampler.seed()) for _ in range(20)]

    assert drawn("0/e/1") == drawn("0/e/1")
    assert drawn("0/e/1") != drawn("0/e/2")


def test_a_choice_sticks_for_its_steps_and_not_beyond_its_policy() -> None:
    pool = Fixed(_policy(), _policy("lagged(4)"))
    sampler = Sampler(pool, Sampling(strategy="uniform", sticky_steps=3), "seed")
    tracks = [sampler.draw(wait_s=0, stop=GO_ON).track for _ in range(60)]
    blocks = [set(tracks[start : start + 3]) for start in range(0, 60, 3)]
    assert all(len(block) == 1 for block in blocks)
    assert len(set.union(*blocks)) == 2
    sampler.draw(wait_s=0, stop=GO_ON)
    pool.policies = (_policy("current", 1),)
    assert sampler.draw(wait_s=0, stop=GO_ON).version == 1


def test_a_policy_that_failed_does_not_stick() -> None:
    pool = Fixed(_policy(server="a"), _policy(server="b"))
    sampler = Sampler(pool, Sampling(sticky_steps=1000), "seed")
    servers = set()
    for _ in range(40):
        servers.add(sampler.draw(wait_s=0, stop=GO_ON).server_id)
        sampler.note_failure()
    assert servers == {"a", "b"}
    assert pool.refreshed == 40


def test_a_conversation_stays_on_its_server_across_tracks() -> None:
    pool = Fixed(*[_policy(t, server=s) for t in ("current", "lagged(4)") for s in ("a", "b", "c")])
    sampler = Sampler(pool, Sampling(strategy="uniform"), "seed")
    drawn = [sampler.draw(wait_s=0, stop=GO_ON) for _ in range(40)]
    assert len({policy.server_id for policy in drawn}) == 1
    assert len({policy.track for policy in drawn}) == 2


def test_a_draw_goes_to_the_server_that_holds_the_longest_prefix() -> None:
    """Of the track drawn; servers without any come after the one drawn last."""
    tracks = ("current", "lagged(4)")
    pool = Fixed(*[_policy(t, n, server=s) for n, t in enumerate(tracks) for s in ("a", "b", "c")])
    sampler = Sampler(pool, Sampling(strategy="uniform"), "seed")
    held: dict[tuple[str, int], int] = {}
    for length in range(10, 400, 10):
        if length == 200:  # the server goes
            gone = {held_by for held_by, _ in held}
            pool.policies = [p for p in pool.policies if p.server_id not in gone]
        policy = sampler.draw(wait_s=0, stop=GO_ON)
        of_track = {place: seen for place, seen in held.items() if place[1] == policy.version}
        alive = {p.server_id for p in pool.policies}
        best = max((n for (server, _), n in of_track.items() if server in alive), default=0)
        assert of_track.get((policy.server_id, policy.version), 0) == best
        sampler.count_tokens(length)
        held[policy.server_id, policy.version] = length
    assert len({server for server, _ in held}) == 2


def test_what_refused_at_a_step_is_drawn_there_only_where_there_is_nothing_else() -> None:
    pool = Fixed(*[_policy(server=name) for name in ("a", "b", "c")])
    sampler = Sampler(pool, Sampling(), "seed")
    drawn = []
    for _ in range(3):
        drawn.append(sampler.draw(wait_s=0, stop=GO_ON).server_id)
        sampler.note_failure()
    assert sorted(drawn) == ["a", "b", "c"]
    assert sampler.draw(wait_s=0, stop=GO_ON).server_id in "abc"
    sampler.count_tokens(10)
    again = {Sampler(pool, Sampling(), str(n)).draw(wait_s=0, stop=GO_ON) for n in range(20)}
    assert len(again) == 3


TRACKS = st.lists(
    st.sampled_from(["current", "lagged(2)", "lagged(4)", "refreshed(8)", "external(t)"]),
    min_size=1,
    max_size=5,
    unique=True,
)


@given(
    seed=st.text(max_size=20),
    strategy=st.sampled_from(["current", "mixed", "uniform", "weighted", "adaptive"]),
    pools=st.lists(TRACKS, min_size=1, max_size=6),
    sticky=st.integers(1, 4),
    servers=st.integers(1, 3),
)
def test_a_replay_draws_the_same_policies(
    seed: str, strategy: Any, pools: list[list[str]], sticky: int, servers: int
) -> None:
    """Over pools that change on the way, with failures at the same steps."""
    config = Sampling(strategy=strategy, sticky_steps=sticky, weights={"current": 0.5})
    weigh = make_weigher(learn([]), OffPolicy(), config, 8)

    def played() -> list[Any]:
        pool, found = Fixed(), []
        sampler = Sampler(pool, config, seed, weigh)
        for number, tracks in enumerate(pools * 3):
            pool.policies = [_policy(t, 1, server=str(s)) for t in tracks for s in range(servers)]
            drawn = sampler.draw(wait_s=0, stop=GO_ON)
            if number % 5 == 4:
                sampler.note_failure()
            else:
                sampler.count_tokens(10 * number)
            found.append((drawn, sampler.seed(), dict(sampler.weights())))
        return found

    assert played() == played()


def test_during_a_swap_the_policy_served_last_is_drawn() -> None:
    old, new, elsewhere = _policy(version=3), _policy(version=4), _policy(version=3, server="b")
    assert newest_per_server([old, elsewhere, new]) == [new, elsewhere]
    rolled_back, restored = _policy(version=9), _policy(version=5)
    assert newest_per_server([rolled_back, restored]) == [restored]


def test_without_a_policy_a_draw_ends_in_an_error() -> None:
    pool = Fixed()
    sampler = Sampler(pool, Sampling(), "seed")
    with pytest.raises(PolicyError, match="no policy server is live"):
        sampler.draw(wait_s=0.3, stop=GO_ON)
    assert pool.refreshed > 0
    stop = threading.Event()
    stop.set()
    with pytest.raises(PolicyError):
        sampler.draw(wait_s=86_400, stop=stop)


def test_a_draw_waits_for_a_policy_that_comes() -> None:
    class Late(Fixed):
        def refresh(self, timeout_s: float = 1.0) -> None:  # noqa: ARG002
            self.refreshed += 1
            if self.refreshed == 2:
                self.policies = [_policy()]

    drawn = Sampler(Late(), Sampling(), "seed").draw(wait_s=86_400, stop=GO_ON)
    assert drawn == _policy()


@pytest.fixture
def world(store: Store) -> World:
    return World.begin(store)


@pytest.fixture
def pool(world: World) -> Iterator[PolicyPool]:
    with closing(PolicyPool.of_run(world.store, world.run_id, pool_config(CONFIG))) as opened:
        yield opened


def test_the_pool_follows_the_registry(world: World, pool: PolicyPool) -> None:
    pool.refresh(60.0)
    assert {policy.track for policy in pool.live()} == {"current", "lagged(4)"}
    world.store.transact(lambda s: policy_servers.end_server(s, f"policy-{world.run_id}"))
    pool.refresh(60.0)
    assert not pool.live()


@pytest.mark.parametrize(
    "named",
    [
        Config(tasks={"dbbench": Task(judge=Judge(policy="critic"))}),
        Config(
            tasks={"dbbench": Task()}, teacher=[Teacher(name="t", checkpoint="external(critic)")]
        ),
    ],
    ids=["judges", "teaches"],
)
def test_a_policy_that_judges_or_teaches_never_acts(world: World, named: Config) -> None:
    """Not even alone; else it would play each turn that a server of ours takes to come up."""

    def register(session: Session) -> None:
        server = PolicyServer(
            server_id="j", run_id=world.run_id, name="critic", engine="external", url="http://j"
        )
        policy_servers.register_server(session, server, lease_s=3600.0)
        row = external_policies.require_checkpoint(session, world.run_id, "critic")
        policy_servers.begin_serving(session, "j", "external(critic)", row)

    world.store.transact(register)
    with closing(PolicyPool.of_run(world.store, world.run_id, pool_config(named))) as pool:
        pool.refresh(60.0)
        assert {policy.track for policy in pool.live()} == {"current", "lagged(4)"}
        world.store.transact(lambda s: policy_servers.end_server(s, f"policy-{world.run_id}"))
        pool.refresh(60.0)
        assert not pool.live()
    found = world.store.ask(lambda s: external_policies.live_server(s, world.run_id, "critic"))
    assert found is not None
    assert found.url == "http://j"


def test_a_refresh_returns_after_a_look_that_began_later() -> None:
    gate, looking = threading.Event(), threading.Event()
    looks: list[None] = []

    def read() -> Sequence[LivePolicy]:
        looks.append(None)
        looking.set()
        if len(looks) == 1:
            gate.wait(60)
            return [_policy(version=0)]
        return [_policy(version=1)]

    with closing(PolicyPool(read, period_s=60)) as pool:
        assert looking.wait(60)
        threading.Timer(0.2, gate.set).start()
        pool.refresh(60.0)
        assert [policy.version for policy in pool.live()] == [1]


def test_reads_of_the_registry_do_not_grow_with_steps() -> None:
    looks: list[None] = []

    def read() -> Sequence[LivePolicy]:
        looks.append(None)
        return [_policy()]

    with closing(PolicyPool(read, period_s=3600.0, look_s=3600.0)) as pool:
        eventually(lambda: looks, within_s=60, text=lambda: "no look")
        sampler = Sampler(pool, Sampling(), "seed")
        for _ in range(5000):
            sampler.draw(wait_s=0, stop=GO_ON)
        assert len(looks) == 1
        threads = [threading.Thread(target=sampler.note_failure) for _ in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(looks) == 1  # the next may begin after `look_s`


def test_a_registry_that_is_away_keeps_the_last_policies() -> None:
    answers = iter([[_policy()]])

    def read() -> Sequence[LivePolicy]:
        found = next(answers, None)
        if found is None:
            raise StoreUnavailable("away")
        return found

    with capture_logs() as lines, closing(PolicyPool(read)) as pool:
        pool.refresh(60.0)
        pool.refresh(60.0)
        assert pool.live() == [_policy()]
    assert lines == []  # the store says once that it is away, not each look
