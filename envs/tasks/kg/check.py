"""The figures of `agentrl envs check kg`: gold programs on support graphs, a large graph."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isclose
from statistics import median

from agentrl.core.errors import ConfigError, ItemError
from agentrl.core.process import resident_bytes
from agentrl.envs.contract import Expert, Item, ToolCall
from agentrl.envs.tasks import options
from agentrl.envs.tasks.check import Figure, Settings
from agentrl.envs.tasks.kg import datasets
from agentrl.envs.tasks.kg.baselines import FirstRelation, RandomWalk
from agentrl.envs.tasks.kg.graph import LocalGraph
from agentrl.envs.tasks.kg.problem import Problem, Rules
from agentrl.envs.tasks.kg.program import And, Count, Entity, Extreme, Join, Program, answers, parse
from agentrl.envs.tasks.kg.questions import action
from agentrl.envs.tasks.kg.source import KgSource
from agentrl.envs.tasks.kg.tools import PARAMETERS, ToolError, Workbench

SHARED = {"agentbench": {"dev and rl": 13}}  # contents, as published
RL_ITEMS = 1214
ACCEPTED = 1083  # of them by the original
MAX_NAMED = 5  # deviations in a figure
QUESTIONS = 200  # of a difficulty, generated from the large graph


def figures(settings: Settings) -> Iterator[Figure]:
    """The figures of the task, each as soon as it is known."""
    for name, measure in MEASURES.items():
        try:
            yield from measure(settings)
        except (ItemError, ConfigError) as error:
            yield Figure(name, str(error), ok=None)


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """A random walk, and always the first relation."""
    problem = options.read(item.item_id, Problem, item.content)
    return {"random": RandomWalk(problem, seed), "constant": FirstRelation(problem)}


def check_program(item: Item, rules: Rules) -> tuple[Problem, set[str]]:
    """The item's problem, and what its gold actions find; nothing where one is refused."""
    problem = options.read(item.item_id, Problem, item.content)
    graph = LocalGraph(problem.triples, problem.attributes)
    bench = Workbench(graph, problem.ontology(rules), problem.entities, rules)
    try:
        for tool, arguments in map(action, problem.actions):
            bench.use(tool, *arguments)
    except ToolError:
        return problem, set()
    return problem, bench.answer(-1)


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


def _permissive(settings: Settings) -> Iterator[Figure]:
    items = _items(settings)
    wrong = [i.item_id for i in items if not _gold(i, "permissive")]
    value = f"{len(items) - len(wrong):,} of {len(items):,}"
    yield Figure(
        "gold programs, permissive", value + _name_wrong(wrong), f"{len(items):,}", ok=not wrong
    )


def _strict(settings: Settings) -> Iterator[Figure]:
    items, status = _items(settings), datasets.replayed_answers(settings.data)
    if unknown := [item.item_id for item in items if item.item_id not in status]:
        raise ItemError(f"kg: nobody says what the original makes of {unknown[0]}")
    accepted = {item.item_id for item in items if _gold(item, "strict")}
    theirs = {item.item_id for item in items if status[item.item_id] == "ok"}
    wanted = f"{len(theirs):,}, the ones that the original accepts"
    value = f"{len(accepted):,} of {len(items):,}{_name_wrong(sorted(accepted ^ theirs))}"
    complete = len(items) < RL_ITEMS or len(theirs) == ACCEPTED
    yield Figure("gold programs, strict", value, wanted, ok=accepted == theirs and complete)


def _expressions(settings: Settings) -> Iterator[Figure]:
    items, back = _items(settings), datasets.reverses(settings.data)
    gold = datasets.expressions("rl", settings.data)
    wrong = []
    for item in items:
        problem = options.read(item.item_id, Problem, item.content)
        graph = LocalGraph(problem.triples, problem.attributes)
        program = forward(parse(gold[item.item_id]), back)
        if set(graph.select(answers(program))) != set(problem.answers):
            wrong.append(item.item_id)
    value = f"{len(items) - len(wrong):,} of {len(items):,}{_name_wrong(wrong)}"
    yield Figure("gold s-expressions", value, f"{len(items):,}", ok=not wrong)


def _rewards(settings: Settings) -> Iterator[Figure]:
    """Of every gold program its last variable, and its first: partly right, mostly wrong."""
    source = KgSource({"origin": "agentbench", "rules": "permissive", "data": settings.data})
    items = _items(settings)
    wrong = [item.item_id for item in items if not _is_scored(source, item)]
    value = f"{len(items) - len(wrong):,} of {len(items):,}{_name_wrong(wrong)}"
    yield Figure("reward and F1", value, f"{len(items):,}", ok=not wrong)


def _turns(settings: Settings) -> Iterator[Figure]:
    source = KgSource({"origin": "agentbench", "rules": "permissive", "data": settings.data})
    items, won, took = _items(settings), 0.0, []
    for item in items:
        reward, turns_s = _play(source, item, settings.seed)
        won += reward
        took += turns_s
    value = f"{won:,.0f} of {len(items):,} won, a turn {median(took) * 1e3:.2f} ms"
    yield Figure("the expert on support graphs", value, f"{len(items):,}", ok=won == len(items))


def _is_scored(source: KgSource, item: Item) -> bool:
    """Whether reward and score of two answers are those of the benchmark's formula."""
    problem = options.read(item.item_id, Problem, item.content)
    calls = [
        ToolCall(tool, dict(zip(PARAMETERS[tool], arguments, strict=True)))
        for tool, arguments in map(action, problem.actions)
    ]
    count = sum(not call.name.startswith("get_") or call.name == "get_neighbors" for call in calls)
    graph = LocalGraph(problem.triples, problem.attributes)
    bench = Workbench(graph, problem.ontology("permissive"), {}, "permissive")
    try:
        for tool, arguments in map(action, problem.actions):
            bench.use(tool, *arguments)
    except ToolError:
        return False
    for index in {0, count - 1}:
        environment = source.make(item)
        environment.call(calls)
        outcome = environment.call(f"Final Answer: #{index}")
        environment.close()
        reward, score = _formula(bench.answer(index), {*problem.answers})
        if outcome.reward != reward or not isclose(outcome.score, score):
            return False
    return True


def _formula(found: set[str], gold: set[str]) -> tuple[float, float]:
    """Exact match, and F1 from precision and recall."""
    both = len(gold & found)
    if not both:
        return 0.0, 0.0
    precision, recall = both / len(found), both / len(gold)
    return float(both == len(gold) == len(found)), 2 / (1 / precision + 1 / recall)


def _large(settings: Settings) -> Iterator[Figure]:
    """FB15k-237: what loading it takes, and questions about it."""
    before, started = _resident_mb(), time.perf_counter()
    named = datasets.NamedGraph.read(settings.data)
    load_s = time.perf_counter() - started
    yield Figure(
        "FB15k-237 in this process",
        f"{len(named.graph):,} triples in {load_s:.1f} s, {_resident_mb() - before:.0f} MB",
    )
    count = settings.limit or QUESTIONS
    given = {"origin": "fb15k237", "data": settings.data, "seed": settings.seed}
    for difficulty in ("easy", "medium", "hard"):
        source = KgSource({**given, "difficulty": difficulty, "items": count, "test_items": 1})
        won, took = 0.0, []
        for number, item in enumerate(source.items("train")):
            reward, turns_s = _play(source, item, number)
            won += reward
            took += turns_s
        value = f"{won / count:.1%} of {count} by the expert, a turn {median(took) * 1e3:.2f} ms"
        yield Figure(f"FB15k-237, {difficulty} questions", value, "95 %", ok=won >= 0.95 * count)


def _play(source: KgSource, item: Item, seed: int) -> tuple[float, list[float]]:
    """The expert's reward, and the seconds that each turn took."""
    environment, expert = source.make(item), source.expert(item, seed=seed)
    messages, took = environment.start().messages, []
    for _ in range(source.max_turns):
        turn = expert.act(messages)
        started = time.perf_counter()
        outcome = environment.call(turn if isinstance(turn, str) else [turn])
        took.append(time.perf_counter() - started)
        if outcome.done:
            return outcome.reward, took
        messages = outcome.messages
    return 0.0, took


def _items(settings: Settings) -> Sequence[Item]:
    items = datasets.agentbench("rl", settings.data)
    if not items:
        raise ItemError("kg: split rl holds no items")
    return items[: settings.limit] if settings.limit else items


def _gold(item: Item, rules: Rules) -> bool:
    problem, found = check_program(item, rules)
    return found == set(problem.answers)


def _name_wrong(wrong: Sequence[str]) -> str:
    more = f" and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
    return f"; not {', '.join(wrong[:MAX_NAMED])}{more}" if wrong else ""


def _resident_mb() -> float:
    return resident_bytes() / 2**20


MEASURES: Mapping[str, Callable[[Settings], Iterator[Figure]]] = {
    "gold programs, permissive": _permissive,
    "gold programs, strict": _strict,
    "gold s-expressions": _expressions,
    "reward and F1": _rewards,
    "the expert on support graphs": _turns,
    "FB15k-237": _large,
}
