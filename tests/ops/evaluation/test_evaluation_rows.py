"""The rows of an evaluation: what decides its id, what is planned, and when it is complete."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import insert, select, update

from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import External, Model, PolicyServer
from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.types import Status
from agentrl.db.models.evaluations import Evaluation, EvaluationEpisode
from agentrl.db.store import Store
from agentrl.envs.contract import Item
from agentrl.ops.evaluation.evaluate import EpisodeScore, Plan, Work
from agentrl.ops.evaluation.evaluation_rows import EvaluationRecord, evaluation_id, settings
from agentrl.ops.evaluation.target import EXPERT, resolve

CONFIG = Config(tasks={"dbbench": Task()})
PLAN = Plan("dbbench", "test", 0.0, 4)


def begin_record(store: Store, items: Sequence[str]) -> EvaluationRecord:
    work = [Work(PLAN, Item("dbbench", item, {}), 0) for item in items]
    return EvaluationRecord(store, CONFIG, EXPERT, {PLAN: work})


def end_episodes(record: EvaluationRecord, scores: Sequence[float | None]) -> None:
    """End what is to do, in order, until scores run out. None: the infrastructure failed it."""
    pairs = zip(record.todo(), scores, strict=False)
    record.add([(work, None if score is None else played(work, score)) for work, score in pairs])
    record.sum_up()


def played(work: Work, score: float) -> EpisodeScore:
    return EpisodeScore(work.item.item_id, 0, Status.COMPLETED, score, score, 1, 9, 5, 4, 1.0)


def counts(store: Store) -> tuple[int, int, bool]:
    """Return (episodes, planned, is_complete) of the only evaluation."""
    with store.read() as session:
        row = session.scalars(select(Evaluation)).one()
        found = list(session.scalars(select(Evaluation).where(Evaluation.is_complete)))
        assert found == [row] * row.is_complete, "SQL and Python agree"
        return row.episodes, row.planned, row.is_complete


def test_an_evaluation_is_complete_when_every_episode_has_ended(store: Store) -> None:
    record = begin_record(store, "abcd")
    assert counts(store) == (0, 4, False)
    end_episodes(record, [1.0, 0.0])
    assert counts(store) == (2, 4, False)
    end_episodes(begin_record(store, "abcd"), [1.0, 0.0])
    assert counts(store) == (4, 4, True)


def test_an_evaluation_is_complete_where_the_infrastructure_failed_the_others(
    store: Store,
) -> None:
    end_episodes(begin_record(store, "abcd"), [1.0, None, 0.0])
    assert counts(store) == (2, 3, False)
    end_episodes(begin_record(store, "abcd"), [None, 0.0])
    assert counts(store) == (3, 3, True)
    begin_record(store, "abcd")  # plays the failed one again
    assert counts(store) == (3, 4, False)


def test_an_evaluation_whose_every_episode_failed_is_not_complete(store: Store) -> None:
    end_episodes(begin_record(store, "ab"), [None, None])
    assert counts(store) == (0, 1, False)


@pytest.mark.parametrize("fewer", ["a", "d"])
def test_an_interrupted_evaluation_is_not_completed_by_asking_for_less(
    store: Store, fewer: str
) -> None:
    end_episodes(begin_record(store, "abcd"), [1.0, 1.0])
    end_episodes(begin_record(store, fewer), [0.0])
    assert counts(store)[1:] == (4, False)


def test_episodes_of_items_that_were_chosen_otherwise_are_not_counted(store: Store) -> None:
    """Once the choice of items was no part of the id."""
    model = CONFIG.model
    spoken = [model.call_style, model.chat_template, model.dtype]
    policy = [EXPERT.checkpoint_id, EXPERT.fingerprint, *spoken, CONFIG.run.seed]
    decides = [policy, "dbbench", "test", 0.0, settings(CONFIG, PLAN)]
    former = hashlib.sha256(msgspec.json.encode(decides)).hexdigest()[:32]
    end_episodes(begin_record(store, "yz"), [1.0, 1.0])
    with store.write() as session:
        row = session.scalars(select(Evaluation)).one()
        columns = {column.name: getattr(row, column.name) for column in row.__table__.columns}
        session.execute(insert(Evaluation).values(columns | {"evaluation_id": former}))
        session.execute(update(EvaluationEpisode).values(evaluation_id=former))
        session.delete(row)
    record = begin_record(store, "ab")
    end_episodes(record, [0.0, 0.0])
    assert [(one.episodes, one.success) for one in record.measured()] == [(2, 0.0)]
    with store.read() as session:
        row = session.get_one(Evaluation, evaluation_id(CONFIG, EXPERT, PLAN))
        assert (row.items, row.episodes, row.success) == (2, 2, 0.0)


def test_a_chat_template_counts_by_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("chat.jinja")

    def name(path: Path) -> str:
        own = msgspec.structs.replace(CONFIG, model=Model(chat_template=str(path)))
        return evaluation_id(own, EXPERT, PLAN)

    file.write_text("short")
    before = name(file)
    assert name(file.absolute()) == before
    file.write_text("edited")
    assert name(file) != before


def test_an_external_policy_is_another_one_if_its_answers_can_differ() -> None:
    def name(**more: object) -> str:
        values = {"url": "http://127.0.0.1:9/v1", "model": "m"} | more
        external = msgspec.convert(values, External)
        servers = [PolicyServer("p"), PolicyServer("big", "external", external=external)]
        own = msgspec.structs.replace(CONFIG, policy=servers)
        return evaluation_id(own, resolve("external(big)", own), PLAN)

    usual = name()
    assert name(timeout_s=1.0, retries=1) == usual
    assert len({usual, name(answer_tokens=16), name(tokens=True), name(model="n")}) == 4


def test_the_image_counts_for_a_task_with_containers() -> None:
    def name(image: str, **options: object) -> str:
        tasks = {"dbbench": Task(options=options)}
        own = msgspec.structs.replace(CONFIG, envs=Envs(docker_image=image), tasks=tasks)
        return evaluation_id(own, EXPERT, PLAN)

    usual = Envs().docker_image
    assert name("other") == name(usual)
    assert name("other", container=True) != name(usual, container=True)
    assert "docker_image" not in settings(CONFIG, PLAN)
