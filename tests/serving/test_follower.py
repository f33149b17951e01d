"""What a follower takes from the lineage and what it refuses, before the local engine."""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import pytest
from checkpoint_rows import begin, begin_server, register
from prometheus_scrape import free_port, scrape

from agentrl.checkpoints import manifest
from agentrl.core.config.sections.monitoring import Metrics
from agentrl.core.errors import ConfigError, PolicyError
from agentrl.core.telemetry.exposition import serve_metrics
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints, policy_servers
from agentrl.db.store import Store, open_store
from agentrl.serving.checkpoint_loader import RETRY_S, median_gap, tolerance
from agentrl.serving.follower import Follower, FollowerConfig
from agentrl.serving.local.engine import LocalEngine
from agentrl.serving.scripted import ScriptedEngine
from agentrl.serving.served_checkpoints import ServedCheckpoints

Save = Callable[[str], Path]
TOKENS = [3, 14, 15, 92, 6]


class Lineage:
    """Checkpoints with probes, for one server of one run."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store
        self.live: list[Checkpoint] = []
        begin(store, "s", "local")

    def publish(self, model: Path, logprobs: list[float] | None) -> str:
        version = len(self.live)
        name, path = f"c{version}", self.folder / f"c{version}"
        shutil.copytree(model, path)
        probe = None if logprobs is None else manifest.Probe(TOKENS, logprobs)
        digests = manifest.digests(path)
        manifest.write(path, manifest.Manifest(name, version, None, digests, probe))
        self.live.append(register(self.store, name, version, path))
        return name


@pytest.fixture
def lineage(tmp_path: Path, migrated_sqlite: Path) -> Iterator[Lineage]:
    shutil.copy(migrated_sqlite, tmp_path / "store.db")
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield Lineage(tmp_path, store)
    store.close()


class Away(ScriptedEngine):
    """Its score fails as often as told."""

    failures = 0

    def score(self, *_: object) -> list[float] | None:
        if self.failures:
            self.failures -= 1
            raise PolicyError("away for now")
        return None


def test_a_checkpoint_is_served_only_if_it_says_what_its_manifest_says(
    lineage: Lineage, engine: LocalEngine, save_model: Save
) -> None:
    served = ServedCheckpoints()
    follower = Follower(
        engine, served, lineage.store, FollowerConfig("s", ["current", "lagged(1)"])
    )
    first, second = engine.score("a", TOKENS), engine.score("b", TOKENS)
    assert first is not None
    assert second is not None
    assert median_gap(first, second) > 0.1
    lineage.publish(save_model("a"), first)
    follower.step(lineage.live)
    lineage.publish(save_model("b"), first)
    follower.step(lineage.live)
    assert served.checkpoints() == ["c0"]
    assert "c1" not in engine.names()
    lineage.publish(save_model("b"), [value + 0.009 for value in second])
    follower.step(lineage.live)
    assert served.tracks()["current"].checkpoint_id == "c2"


def test_bfloat16_is_given_more_room_and_the_largest_difference_counts_for_nothing(
    lineage: Lineage, engine: LocalEngine, save_model: Save
) -> None:
    served = ServedCheckpoints()
    follower_config = FollowerConfig("s", ["current"], tolerance("bfloat16"))
    follower = Follower(engine, served, lineage.store, follower_config)
    truth = engine.score("a", TOKENS)
    assert truth is not None
    lineage.publish(save_model("a"), [truth[0] + 5.0, *(value + 0.14 for value in truth[1:])])
    follower.step(lineage.live)
    assert served.checkpoints() == ["c0"]
    lineage.publish(save_model("a"), [value + 0.16 for value in truth])
    follower.step(lineage.live)
    assert served.checkpoints() == ["c0"]


def test_the_tolerance_is_the_configured_one_or_that_of_the_type() -> None:
    assert tolerance("float32") < tolerance("bfloat16") == tolerance("float16")
    assert tolerance("bfloat16", 0.5) == 0.5


class Mumbling(ScriptedEngine):
    """Says something else the first time that it is asked."""

    asked = 0

    def score(self, *_: object) -> list[float] | None:
        self.asked += 1
        return [-9.0 if self.asked == 1 else -1.0] * 4


def test_a_checkpoint_that_sounded_wrong_is_tried_again_later(
    lineage: Lineage, save_model: Save
) -> None:
    engine, served, seconds = Mumbling(), ServedCheckpoints(), [0.0]
    follower_config = FollowerConfig("s", ["current"])
    follower = Follower(engine, served, lineage.store, follower_config, clock=lambda: seconds[0])
    lineage.publish(save_model("a"), [-1.0] * 4)
    port = free_port()
    with serve_metrics(Metrics(port=port), "mine", "policy", "policy"):
        follower.step(lineage.live)
        follower.step(lineage.live)
        assert (served.checkpoints(), engine.names(), engine.asked) == ([], [], 1)
        assert _refused(port) == 1
        seconds[0] += RETRY_S
        follower.step(lineage.live)
        assert served.checkpoints() == ["c0"]
        assert _refused(port) == 0


def _refused(port: int) -> float:
    (line,) = re.findall(r"^agentrl_checkpoint_refused.*$", scrape(port), re.MULTILINE)
    return float(line.rpartition(" ")[2])


def test_an_engine_that_failed_is_asked_again_later(lineage: Lineage, save_model: Save) -> None:
    engine, served, seconds = Away(), ServedCheckpoints(), [0.0]
    engine.failures = 2
    follower_config = FollowerConfig("s", ["current"])
    follower = Follower(engine, served, lineage.store, follower_config, clock=lambda: seconds[0])
    lineage.publish(save_model("a"), [-1.0] * 4)
    for failures in (1, 0):
        follower.step(lineage.live)
        assert served.checkpoints() == []
        assert engine.names() == []
        follower.step(lineage.live)
        assert engine.failures == failures  # not asked before its time
        seconds[0] += RETRY_S
    follower.step(lineage.live)
    assert served.checkpoints() == ["c0"]


def test_a_torn_checkpoint_is_passed_over_and_the_former_stays(
    lineage: Lineage, save_model: Save
) -> None:
    engine, served = ScriptedEngine(), ServedCheckpoints()
    follower = Follower(engine, served, lineage.store, FollowerConfig("s", ["current"]))
    lineage.publish(save_model("a"), None)
    follower.step(lineage.live)
    torn = lineage.publish(save_model("a"), None)
    (lineage.folder / torn / "model.safetensors").write_bytes(b"torn")
    follower.step(lineage.live)
    assert (served.checkpoints(), engine.names()) == (["c0"], ["c0"])
    lineage.publish(save_model("a"), None)
    follower.step(lineage.live)
    assert served.checkpoints() == ["c2"]


def test_what_an_engine_lost_is_closed_and_loaded_again(lineage: Lineage, save_model: Save) -> None:
    engine, served = ScriptedEngine(), ServedCheckpoints()
    follower = Follower(
        engine, served, lineage.store, FollowerConfig("s", ["current", "lagged(1)"])
    )
    lineage.publish(save_model("a"), None)
    follower.step(lineage.live)
    engine.close()
    follower.step([])
    assert served.checkpoints() == []
    with lineage.store.read() as session:
        assert checkpoints.live_policies(session, "run") == []
    follower.step(lineage.live)
    with lineage.store.read() as session:
        assert len(checkpoints.live_policies(session, "run")) == 2


class OneDrains(ScriptedEngine):
    """Counts its loads, as an engine whose memory is planned like the local engine's."""

    draining_policies = 1

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []

    def load(self, name: str, path: Path) -> None:
        self.loads.append(name)
        super().load(name, path)


def _publish_while_requests_run(
    lineage: Lineage, engine: ScriptedEngine, tracks: Sequence[str], model: Path
) -> ServedCheckpoints:
    """Publish 12 versions; requests to each served checkpoint last until the next version."""
    served = ServedCheckpoints()
    follower = Follower(engine, served, lineage.store, FollowerConfig("s", tracks))
    for _ in range(12):
        lineage.publish(model, None)
        with ExitStack() as requests:
            for name in served.checkpoints():
                requests.enter_context(served.request(name))
            follower.step(lineage.live)
            most = len(tracks) + (engine.draining_policies or len(tracks))
            assert len(engine.names()) <= most
        follower.step(lineage.live)
    return served


def test_one_checkpoint_drains_at_a_time_and_each_track_gets_its_turn(
    lineage: Lineage, save_model: Save
) -> None:
    tracks = ["current", "lagged(2)", "lagged(5)"]
    served = _publish_while_requests_run(lineage, OneDrains(), tracks, save_model("a"))
    wanted = dict(zip(tracks, (11, 9, 6), strict=True))
    late = {track: wanted[track] - served.tracks()[track].version for track in tracks}
    assert max(late.values()) <= 3, late


def test_an_engine_without_a_bound_follows_every_track_at_once(
    lineage: Lineage, save_model: Save
) -> None:
    tracks = ["current", "lagged(2)", "lagged(5)"]
    served = _publish_while_requests_run(lineage, ScriptedEngine(), tracks, save_model("a"))
    assert [served.tracks()[track].version for track in tracks] == [11, 9, 6]


@pytest.mark.parametrize("tracks", list(permutations(["current", "lagged(1)", "lagged(2)"])))
def test_a_checkpoint_that_passes_from_track_to_track_is_loaded_once(
    lineage: Lineage, save_model: Save, tracks: Sequence[str]
) -> None:
    engine, served = OneDrains(), ServedCheckpoints()
    follower = Follower(engine, served, lineage.store, FollowerConfig("s", tracks))
    for _ in range(5):
        lineage.publish(save_model("a"), None)
        follower.step(lineage.live)
    wanted = {"current": "c4", "lagged(1)": "c3", "lagged(2)": "c2"}
    assert {name: each.checkpoint_id for name, each in served.tracks().items()} == wanted
    assert engine.loads == ["c0", "c1", "c2", "c3", "c4"]
    with lineage.store.read() as session:
        live = checkpoints.live_policies(session, "run")
        assert len(live) == 3
        assert {each.track: each.checkpoint_id for each in live} == wanted


class InPlace(ScriptedEngine):
    """Holds one policy."""

    places = 1

    def score(self, *_: object) -> list[float] | None:
        return None


def _follower(lineage: Lineage, server_id: str) -> tuple[Follower, ServedCheckpoints]:
    served = ServedCheckpoints()
    return Follower(
        InPlace(), served, lineage.store, FollowerConfig(server_id, ["current"])
    ), served


def _two_followers(lineage: Lineage, first: Path) -> list[tuple[Follower, ServedCheckpoints]]:
    """Servers of one track, which serve its first checkpoint."""
    begin_server(lineage.store, "t")
    both = [_follower(lineage, "s"), _follower(lineage, "t")]
    lineage.publish(first, None)
    for follower, _ in both:
        follower.step(lineage.live)
    return both


def _versions(*every: ServedCheckpoints) -> list[int | None]:
    tracks = [served.tracks().get("current") for served in every]
    return [each.version if each else None for each in tracks]


def test_servers_of_a_track_exchange_weights_in_place_one_after_another(
    lineage: Lineage, save_model: Save
) -> None:
    (one, of_one), (two, of_two) = _two_followers(lineage, save_model("a"))
    assert _versions(of_one, of_two) == [0, 0]
    lineage.publish(save_model("b"), None)
    with of_one.request("c0"):  # drains
        one.step(lineage.live)
        two.step(lineage.live)
        assert _versions(of_one, of_two) == [None, 0]
    one.step(lineage.live)
    assert _versions(of_one, of_two) == [1, 0]
    two.step(lineage.live)
    assert _versions(of_one, of_two) == [1, 1]


def test_a_server_that_died_while_it_exchanged_weights_keeps_no_other_from_it(
    lineage: Lineage, save_model: Save
) -> None:
    (one, of_one), (two, of_two) = _two_followers(lineage, save_model("a"))
    lineage.publish(save_model("b"), None)
    with of_one.request("c0"):
        one.step(lineage.live)
        two.step(lineage.live)
        assert _versions(of_one, of_two) == [None, 0]
        lineage.store.transact(
            lambda s: policy_servers.beat_server(s, "s", lease_s=-1.0)  # its lease is over
        )
        two.step(lineage.live)
    assert _versions(of_two) == [1]


def test_more_tracks_than_places_are_refused(lineage: Lineage) -> None:
    class One(ScriptedEngine):
        places = 1

    with pytest.raises(ConfigError, match="2 tracks, but the engine serves 1"):
        Follower(
            One(), ServedCheckpoints(), lineage.store, FollowerConfig("s", ["current", "lagged(1)"])
        )


@pytest.mark.parametrize(
    ("one", "other", "off"),
    [
        ([-1.0, -2.0, -9.0], [-1.1, -2.2, -3.0], 0.2),
        ([], [], 0.0),
        ([-1.0], [], float("inf")),
        ([float("nan"), -1.0, -1.0], [-1.0] * 3, float("inf")),
    ],
)
def test_the_median_gap_of_log_probabilities(
    one: list[float], other: list[float], off: float
) -> None:
    assert median_gap(one, other) == pytest.approx(off)
