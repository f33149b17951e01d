"""The figures of `agentrl envs check dbbench`, and its baseline policies."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random

from agentrl.core.errors import AgentRLError, ItemError
from agentrl.envs.contract import Expert, Item, Message, ToolCall
from agentrl.envs.tasks import options
from agentrl.envs.tasks.check import Figure, Settings
from agentrl.envs.tasks.datasets import locate
from agentrl.envs.tasks.dbbench import datasets
from agentrl.envs.tasks.dbbench.environment import COMMIT, EXECUTE
from agentrl.envs.tasks.dbbench.generate import TEMPLATES
from agentrl.envs.tasks.dbbench.problem import Problem, Table
from agentrl.envs.tasks.dbbench.source import DbbenchSource

PER_KIND = 20  # items of the benchmark's dev split: INSERT, UPDATE, queries
WIKI_ITEMS = {"train": 14_152, "test": 3_537}
WIKI_SKIPPED = {"train": 0, "test": 1}  # asked in train too, of the same table
TABLES = 40  # that the engines are compared on
ROWS = 25  # of each
AGREEMENT = 0.99  # of statements with the same values
NAMED = 3  # differences in a figure
CONSTRUCTS: Mapping[str, Callable[[str], bool]] = {
    "aggregation": lambda sql: any(f"{name}(" in sql for name in ("count", "sum", "max", "avg")),
    "ordering": lambda sql: "order by" in sql,
    "grouping": lambda sql: "group by" in sql,
    "comparison": lambda sql: ">" in sql or " in (" in sql,
}


def figures(settings: Settings) -> Iterator[Figure]:
    engines = {"SQLite": "", "MariaDB": settings.peers.get("mariadb", "")}
    for engine, url in engines.items():
        yield from _gold(engine, url, settings)
    yield _agreement(engines["MariaDB"], settings)
    yield from _wiki(settings)
    yield _coverage()


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy that commits a random cell of the table, and one that always commits 1."""
    problem = options.read(item.item_id, Problem, item.content)
    cells = [cell for row in problem.tables[0].rows for cell in row] or ["1"]
    return {"random": Commits(cells, seed), "constant": Commits(["1"], seed)}


class Commits:
    """An Expert that commits one of `answers` at once."""

    def __init__(self, answers: Sequence[str], seed: int) -> None:
        self._answers, self._random = answers, Random(seed)

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        return ToolCall(COMMIT, {"answers": [self._random.choice(self._answers)]})


def _gold(engine: str, url: str, settings: Settings) -> Iterator[Figure]:
    """Check that the benchmark's SQL gives the recorded hash, and that its answers are rewarded."""
    names = {kind: f"gold on {engine}: {kind}" for kind in ("INSERT", "UPDATE", "query")}
    few = min(settings.limit or PER_KIND, PER_KIND)
    try:
        if engine == "MariaDB" and not url:
            raise ItemError("no server: --peer mariadb=URL")
        source = DbbenchSource({"origin": "agentbench", "data": settings.data, "server": url})
        items = source.items("dev")
        wrong: dict[str, list[str]] = {kind: [] for kind in names}
        total = dict.fromkeys(names, 0)
        for item in items:
            kind = item.content["kind"] if item.content.get("answer_md5") else "query"
            if total[kind] == few:
                continue
            total[kind] += 1
            if not is_gold_rewarded(source, item):
                wrong[kind].append(item.item_id)
    except AgentRLError as error:
        yield from (Figure(name, str(error), f"{few}/{few}", None) for name in names.values())
        return
    for kind, name in names.items():
        right = total[kind] - len(wrong[kind])
        value = " ".join([f"{right}/{total[kind]}", *wrong[kind][:NAMED]])
        yield Figure(name, value, f"{few}/{few}", right == total[kind] == few)


def is_gold_rewarded(source: DbbenchSource, item: Item) -> bool:
    """Return whether the item's gold is rewarded: its SQL for a change, else its answers."""
    problem = options.read(item.item_id, Problem, item.content)
    environment = source.make(item)
    try:
        environment.start()
        if problem.modifies:
            environment.call([ToolCall(EXECUTE, {"query": problem.gold_sql})])
        answers = list(problem.answers) or ["done"]
        return environment.call([ToolCall(COMMIT, {"answers": answers})]).reward == 1.0
    finally:
        environment.close()


def _agreement(url: str, settings: Settings) -> Figure:
    name, wanted = "replies of SQLite and MariaDB", f"≥ {AGREEMENT:.0%} with the same values"
    try:
        if not url:
            raise ItemError("no server: --peer mariadb=URL")
        from agentrl.envs.tasks.dbbench.differential import compare
        from agentrl.envs.tasks.dbbench.server import Server, ServerDatabase

        tables = wiki_sample(settings, TABLES)
        sqlite = DbbenchSource({"dialect": "mysql"}).open_database()
        server = partial(ServerDatabase, server=Server.at(url, ""), timeout_s=10.0)
        counts, differences = compare(
            tables,
            Random(settings.seed),
            lambda table: sqlite([table]),
            lambda table: server([table]),
        )
    except AgentRLError as error:
        return Figure(name, str(error), wanted, None)
    except ImportError as error:
        return Figure(name, f"{error}: the extra `tasks` is not installed", wanted, None)
    total = sum(counts.values())
    equal = counts["same"] + counts["type"]
    shown = [found.sql for found in differences if found.kind not in ("type", "same")][:NAMED]
    told = ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts))
    value = f"{equal / total:.2%} of {total} ({told})"
    return Figure(name, " · ".join([value, *shown]), wanted, equal / total >= AGREEMENT)


def wiki_sample(settings: Settings, count: int) -> list[Table]:
    """Return Wikipedia's tables, cut to a few rows. Raises ItemError."""
    root = locate(datasets.WIKITABLEQUESTIONS, settings.data)
    tables = datasets.wiki_tables(root / datasets.WIKITABLEQUESTIONS.paths[2])
    fitting = [name for name in sorted(tables) if tables[name]["rows"]]
    chosen = Random(settings.seed).sample(fitting, min(settings.limit or count, count))
    return [
        Table(tables[name]["name"], tables[name]["columns"], tables[name]["rows"][:ROWS])
        for name in chosen
    ]


def _wiki(settings: Settings) -> Iterator[Figure]:
    for split, count in WIKI_ITEMS.items():
        name, wanted = f"WikiTableQuestions {split}", f"{count - WIKI_SKIPPED[split]:,} items"
        try:
            found = len(datasets.items("wikitablequestions", split, settings.data))
        except AgentRLError as error:
            yield Figure(name, str(error), wanted, None)
            continue
        yield Figure(name, f"{found:,} items", wanted, f"{found:,} items" == wanted)


def _coverage() -> Figure:
    """Compare the kinds and constructs of the generator's templates with those wanted."""
    templates = {template for group in TEMPLATES.values() for template in group}
    found = {template.kind for template in templates}
    queries = [template.sql for template in templates if template.kind == "SELECT"]
    found |= {name for name, asks in CONSTRUCTS.items() if any(map(asks, queries))}
    wanted = {"SELECT", "INSERT", "UPDATE", "DELETE", *CONSTRUCTS}
    return Figure("generator", ", ".join(sorted(found)), ", ".join(sorted(wanted)), found >= wanted)
