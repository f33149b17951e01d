"""AgentBench's questions and FB15k-237 as a whole; skipped where they are not on this machine."""

import json
from collections.abc import Callable, Mapping, Sequence
from math import isclose
from pathlib import Path

import pytest
from kg_programs import parse

from agentrl.envs.contract import Item, ToolCall
from agentrl.envs.play import play
from agentrl.envs.tasks import options
from agentrl.envs.tasks.datasets import Dataset, locate
from agentrl.envs.tasks.kg import datasets
from agentrl.envs.tasks.kg.gold_progress import gold_programs
from agentrl.envs.tasks.kg.graph import LocalGraph
from agentrl.envs.tasks.kg.problem import Problem, Rules
from agentrl.envs.tasks.kg.program import And, Count, Entity, Extreme, Join, Program, answers
from agentrl.envs.tasks.kg.questions import action, replay
from agentrl.envs.tasks.kg.task_source import KgSource
from agentrl.envs.tasks.kg.tools import PARAMETERS, ToolError, Workbench

Present = Callable[[Dataset], Dataset]
OPTIONS = {"origin": "agentbench", "rules": "permissive"}


@pytest.fixture
def questions(dataset: Present) -> Callable[[str], Sequence[Item]]:
    """The items of a split."""
    dataset(datasets.SUPPORT_GRAPHS)
    return lambda split: datasets.agentbench(split, "")


def data(path: str) -> Path:
    return locate(datasets.SUPPORT_GRAPHS) / "kg" / path


def replayed_answers() -> dict[str, str]:
    """What the original makes of an item's actions, by its id: `ok`, else why not."""
    rows = data("support_graphs/upstream_replay_status.tsv").read_text("utf-8").splitlines()
    return {
        f"{'dev' if split == 'dev' else 'rl'}-{qid}": status
        for split, qid, status in (row.split("\t") for row in rows)
    }


def run_gold(item: Item, rules: Rules) -> tuple[Problem, set[str]]:
    """The item's problem, and what its gold actions find; nothing where one is refused."""
    problem = options.read(item, Problem)
    graph = LocalGraph(problem.triples, problem.attributes)
    bench = Workbench(graph, problem.ontology(rules), problem.entities, rules)
    try:
        for tool, arguments in map(action, problem.actions):
            bench.use(tool, *arguments)
    except ToolError:
        return problem, set()
    return problem, bench.answer(-1)


def accepted(items: Sequence[Item], rules: Rules) -> set[str]:
    """Names of the items whose gold actions find the answers."""
    return {
        item.item_id
        for item in items
        for problem, found in [run_gold(item, rules)]
        if found == set(problem.answers)
    }


@pytest.mark.parametrize(
    ("split", "count", "replayed"),
    [("dev", 20, 18), pytest.param("rl", 1214, 1083, marks=pytest.mark.slow)],
)
def test_gold_actions_find_the_answers_and_strictly_where_the_original_accepts_them(
    split: str, count: int, replayed: int, questions: Callable[[str], Sequence[Item]]
) -> None:
    items, status = questions(split), replayed_answers()
    assert accepted(items, "permissive") == {item.item_id for item in items}
    found = accepted(items, "strict")
    assert found == {item.item_id for item in items if status[item.item_id] == "ok"}
    assert (len(items), len(found)) == (count, replayed)


@pytest.mark.parametrize("split", ["dev", pytest.param("rl", marks=pytest.mark.slow)])
def test_progress_counts_the_variables_that_the_gold_actions_make(
    split: str, questions: Callable[[str], Sequence[Item]]
) -> None:
    for item in questions(split):
        problem = options.read(item, Problem)
        graph = LocalGraph(problem.triples, problem.attributes)
        bench = Workbench(graph, problem.ontology("permissive"), problem.entities, "permissive")
        replay(problem.actions, bench)
        made = [variable.program for variable in bench.variables]
        assert gold_programs(problem) == made != [], item.item_id


def forward(program: Program, back: Mapping[str, str]) -> Program:
    """The program without its classes, each relation that leads to a set replaced by the one back:
    a support graph holds no classes, and every edge in the direction of the tools."""
    match program:
        case Join(relation, False, of) if relation in back:
            return Join(back[relation], inverse=True, of=forward(of, back))
        case Join(relation, inverse, of):
            return Join(relation, inverse, forward(of, back))
        case And(left, right):
            of = forward(right, back)
            return of if isinstance(left, Entity) else And(forward(left, back), of)
        case Extreme(of, attribute, largest):
            return Extreme(forward(of, back), attribute, largest)
        case Count(of):
            return Count(forward(of, back))
    return program


@pytest.mark.slow
def test_gold_expressions_find_the_answers(questions: Callable[[str], Sequence[Item]]) -> None:
    back = dict(row.split() for row in data("ontology/reverse_properties").read_text().splitlines())
    records = json.loads(data(datasets.SPLITS["rl"][0]).read_text("utf-8"))
    gold = {f"rl-{record['qid']}": record["s_expression"] for record in records}
    for item in questions("rl"):
        problem = options.read(item, Problem)
        graph = LocalGraph(problem.triples, problem.attributes)
        program = forward(parse(gold[item.item_id]), back)
        assert set(graph.select(answers(program))) == set(problem.answers), item.item_id


def formula(found: set[str], gold: set[str]) -> tuple[float, float]:
    """Exact match, and F1 from precision and recall."""
    both = len(gold & found)
    if not both:
        return 0.0, 0.0
    precision, recall = both / len(found), both / len(gold)
    return float(both == len(gold) == len(found)), 2 / (1 / precision + 1 / recall)


@pytest.mark.slow
def test_reward_and_score_are_the_benchmarks_formula(
    questions: Callable[[str], Sequence[Item]],
) -> None:
    """Of every gold program its last variable, and its first: partly right, mostly wrong."""
    source = KgSource(OPTIONS)
    for item in questions("rl"):
        problem = options.read(item, Problem)
        steps = list(map(action, problem.actions))
        calls = [ToolCall(t, dict(zip(PARAMETERS[t], given, strict=True))) for t, given in steps]
        made = sum(not tool.startswith("get_") or tool == "get_neighbors" for tool, _ in steps)
        graph = LocalGraph(problem.triples, problem.attributes)
        bench = Workbench(graph, problem.ontology("permissive"), {}, "permissive")
        for tool, arguments in steps:
            bench.use(tool, *arguments)
        for index in {0, made - 1}:
            environment = source.make(item)
            environment.call(calls)
            outcome = environment.call(f"Final Answer: #{index}")
            environment.close()
            reward, score = formula(bench.answer(index), {*problem.answers})
            assert outcome.reward == reward, item.item_id
            assert isclose(outcome.score, score), item.item_id


@pytest.mark.slow
def test_an_expert_solves_every_question_on_its_support_graph(
    questions: Callable[[str], Sequence[Item]],
) -> None:
    source = KgSource(OPTIONS)
    for item in questions("rl"):
        assert play(source, item, source.expert(item, seed=0)).reward == 1.0, item.item_id


@pytest.mark.slow
def test_an_expert_solves_questions_about_fb15k237(dataset: Present) -> None:
    for wanted in datasets.DATASETS:
        dataset(wanted)
    assert len(datasets.NamedGraph.read("").graph) == 310_116
    given = {"origin": "fb15k237", "items": 50, "test_items": 1}
    for difficulty in ("easy", "medium", "hard"):
        source = KgSource({**given, "difficulty": difficulty})
        items = source.items("train")
        won = sum(
            play(source, item, source.expert(item, seed=n)).reward for n, item in enumerate(items)
        )
        assert won >= 0.95 * len(items)
