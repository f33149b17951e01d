"""Training on a history, with the real trainer."""

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import faulty_filesystem
import pytest
from echo_endpoint import EchoScript
from external_run import external_teacher
from faulty_filesystem import FaultyFileSystem
from openai_endpoint import serve_endpoint
from planted_run import PlantedRun
from running import agentrl

from agentrl.core.errors import ConfigError, StoreError
from agentrl.core.types import RunState
from agentrl.db.audit.run_audit import AuditRules, audit
from agentrl.db.transitions import runs
from agentrl.ops.offline.rescore import rescore
from agentrl.ops.offline.train_from import OfflineRequest, train_from
from agentrl.ops.runs.lifecycle import RunPlace, find_run_place

pytestmark = pytest.mark.slow

REWARDS = """
def recorded(episode):
    return episode.reward

def repeated(episode):
    return episode.reward

def flipped(episode):
    return 1.0 - episode.reward
"""


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlantedRun]:
    folder = tmp_path_factory.mktemp("learned")
    (folder / "rewards.py").write_text(REWARDS)
    with PlantedRun.begun(folder) as world:
        world.learn_twice()
        yield world


def weights(learned: PlantedRun, name: str) -> list[bytes]:
    """The weights of each version of a run."""
    rows = learned.ask(
        "SELECT c.path FROM checkpoints c JOIN runs r USING (run_id) WHERE r.name = :n"
        " AND c.state = 'live' ORDER BY c.version",
        n=name,
    )
    return [(Path(path) / "model.safetensors").read_bytes() for (path,) in rows]


def retrain(learned: PlantedRun, source: str, name: str, max_age: int | None = None) -> str:
    place = RunPlace(learned.config.store_url(), source, learned.config.home())
    return train_from(OfflineRequest(place, name, max_age=max_age), threading.Event())


def score(learned: PlantedRun, function: str) -> None:
    place = find_run_place(str(learned.path))
    rescore(place, f"{learned.path.parent / 'rewards.py'}:{function}", function)


def test_a_runs_own_rewards_give_its_own_weights_bit_for_bit(
    learned: PlantedRun, tmp_path: Path
) -> None:
    own = weights(learned, "learned")
    assert len(set(own)) == 3
    log = tmp_path / "log"
    with agentrl("train", "--from", str(learned.path), environment={}, output=log) as process:
        assert process.wait(300) == 0, log.read_text()
    assert weights(learned, "learned-retrained") == own
    assert "2 updates from learned, 5 of 6 groups trained, 1 filtered" in log.read_text()
    score(learned, "recorded")
    retrain(learned, "recorded", "recorded-retrained")
    assert weights(learned, "recorded-retrained") == own
    with learned.store.read() as session:
        for name in ("learned-retrained", "recorded-retrained"):
            run = runs.require_run(session, name)
            assert (run.state, run.reason) == (RunState.COMPLETED, "2 updates")
            rules = AuditRules(max_attempts=3, whole_stream=False)
            found = {each.kind for each in audit(session, run.run_id, [], rules)}
            assert found == {"unserved_step"}  # those of the planted bodies
    assert learned.accounting() == []


def test_other_rewards_and_settings_give_other_weights(learned: PlantedRun) -> None:
    own = weights(learned, "learned")
    score(learned, "flipped")
    retrain(learned, "flipped", "flipped-retrained")
    found = weights(learned, "flipped-retrained")
    assert found[0] == own[0]
    assert len({*found, *own}) == 5


def test_groups_that_are_too_old_are_told(learned: PlantedRun) -> None:
    told = retrain(learned, "learned", "young", max_age=0)
    assert "1 updates from learned, 3 of 6 groups trained, 1 filtered, 2 too old" in told
    assert "too old: 2 groups of the history's updates 2: " in told
    with learned.store.read() as session:
        run = runs.require_run(session, "young")
    assert (run.state, run.reason) == (RunState.COMPLETED, "end of the history")


def test_a_training_that_was_stopped_goes_on_to_the_same_weights(learned: PlantedRun) -> None:
    place = RunPlace(learned.config.store_url(), "learned", learned.config.home())
    halfway = OfflineRequest(place, "stopped")
    told = train_from(halfway, StopAfterFirst(learned, "stopped"))
    assert told.endswith("interrupted: the same command continues")
    assert len(weights(learned, "stopped")) == 2
    train_from(halfway, threading.Event())
    assert weights(learned, "stopped") == weights(learned, "learned")


def test_a_training_that_was_stopped_during_its_last_commit_is_not_over(
    learned: PlantedRun,
) -> None:
    """The history is used up, and the object store away: the next start commits the update."""
    stop = threading.Event()

    def give_up(path: str) -> None:
        if "-v000002" in path:
            stop.set()
            raise OSError("the object store is away")

    faulty_filesystem.register()
    FaultyFileSystem.faults[:] = [give_up] * 1000
    place = RunPlace(learned.config.store_url(), "learned", learned.config.home())
    changes = ["run.stop_updates=9", "run.checkpoints=faulty://far"]
    request = OfflineRequest(place, "halfway-there", changes=changes)
    told = train_from(request, stop)
    FaultyFileSystem.faults.clear()
    assert told.endswith("interrupted: the same command continues")
    asked = "SELECT state, reason, version FROM runs WHERE name = 'halfway-there'"
    assert [(state, version) for state, _, version in learned.ask(asked)] == [("running", 1)]
    train_from(request, threading.Event())
    assert learned.ask(asked) == [("completed", "end of the history", 2)]


class StopAfterFirst(threading.Event):
    """Set once a run's first update is being published, or is committed."""

    def __init__(self, learned: PlantedRun, name: str) -> None:
        super().__init__()
        self._learned, self._name = learned, name

    def is_set(self) -> bool:
        if super().is_set() or "publisher" in {each.name for each in threading.enumerate()}:
            return True
        rows = self._learned.ask("SELECT version FROM runs WHERE name = :n", n=self._name)
        return any(version >= 1 for (version,) in rows)


def test_a_training_that_was_stopped_goes_on_with_its_own_options_only(learned: PlantedRun) -> None:
    place = RunPlace(learned.config.store_url(), "learned", learned.config.home())
    stop = threading.Event()
    stop.set()
    first = OfflineRequest(place, "chosen", changes=["trainer.loss=cispo"], max_age=3)
    train_from(first, stop)
    for request, change in (
        (replace(first, changes=["trainer.loss=gspo"]), 'trainer.loss: "cispo" → "gspo"'),
        (replace(first, max_age=None), "dispatch.max_staleness: 3 → 1, dispatch.max_lag: 3 → 64"),
    ):
        reason = f"run chosen began with another configuration: {change}"
        with pytest.raises(ConfigError, match=f"^{re.escape(reason)}$"):
            train_from(request, threading.Event())
    assert len(weights(learned, "chosen")) == 1
    score(learned, "repeated")
    elsewhere = replace(first, where=replace(place, run="repeated"))
    with pytest.raises(StoreError, match="a run named chosen exists already"):
        train_from(elsewhere, threading.Event())
    train_from(first, threading.Event())
    assert len(weights(learned, "chosen")) == 3


def test_what_cannot_be_trained_is_refused(learned: PlantedRun) -> None:
    place = RunPlace(learned.config.store_url(), "learned", learned.config.home())
    with pytest.raises(StoreError, match="a run named learned exists already"):
        train_from(OfflineRequest(place, "learned"), threading.Event())
    ranks = OfflineRequest(place, "ranks", changes=["trainer.engine=deepspeed"])
    with pytest.raises(ConfigError, match="--from trains in one process"):
        train_from(ranks, threading.Event())
    file = learned.path.with_name("untaught.toml")
    file.write_text(learned.path.read_text() + TAUGHT.replace("learned@2", "external(x)"))
    with pytest.raises(ConfigError, match="checkpoint of elder: x is not known"):
        train_from(OfflineRequest(place, "untaught", file=file, max_age=9), threading.Event())
    assert learned.ask("SELECT name FROM runs WHERE name IN ('ranks', 'untaught')") == []


TAUGHT = """
[[teacher]]
name = "elder"
checkpoint = "learned@2"
tasks = ["dbbench"]
"""


def assert_teacher_of_dbbench(learned: PlantedRun, name: str, checkpoint: str) -> None:
    """The rows of the run's trained episodes name the teacher of dbbench, and none of alfworld."""
    rows = learned.ask(
        "SELECT DISTINCT g.task, u.teacher, u.teacher_checkpoint, length(u.teacher_digest),"
        " u.reverse_kl IS NULL FROM update_groups u JOIN groups g USING (group_id)"
        " JOIN runs r USING (run_id) WHERE r.name = :n ORDER BY g.task",
        n=name,
    )
    assert [tuple(row) for row in rows] == [
        ("alfworld", None, None, None, 1),
        ("dbbench", "elder", checkpoint, 64, 0),
    ]
    assert learned.accounting() == []


def test_a_teacher_from_the_store_is_named_by_rows_and_gives_the_same_weights_after_a_stop(
    learned: PlantedRun,
) -> None:
    file = learned.path.with_name("taught.toml")
    file.write_text(learned.path.read_text() + TAUGHT)
    place = RunPlace(learned.config.store_url(), "learned", learned.config.home())

    def taught(name: str) -> OfflineRequest:
        return OfflineRequest(place, name, file=file, max_age=9)

    train_from(taught("taught"), threading.Event())
    train_from(taught("halted"), StopAfterFirst(learned, "halted"))
    assert len(weights(learned, "halted")) == 2
    train_from(taught("halted"), threading.Event())
    own = weights(learned, "taught")
    assert weights(learned, "halted") == own
    assert own[1:] != weights(learned, "learned")[1:]
    ((elder,),) = learned.ask(
        "SELECT checkpoint_id FROM checkpoints c JOIN runs r USING (run_id)"
        " WHERE r.name = 'learned' AND c.version = 2"
    )
    assert_teacher_of_dbbench(learned, "taught", elder)


def test_an_external_teacher_is_named_by_rows_with_a_digest_of_each_episodes_scores(
    learned: PlantedRun,
) -> None:
    file = learned.path.with_name("external.toml")
    place = RunPlace(learned.config.store_url(), "learned", learned.config.home())
    with serve_endpoint(EchoScript(Path(learned.config.model.path) / "tokenizer.json")) as there:
        file.write_text(learned.path.read_text() + external_teacher(there.url))
        train_from(OfflineRequest(place, "external", file=file, max_age=9), threading.Event())
        assert there.asked
    assert weights(learned, "external")[1:] != weights(learned, "learned")[1:]
    assert_teacher_of_dbbench(learned, "external", "external(critic): big")
