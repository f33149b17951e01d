"""The task source: items and their environments."""

from collections.abc import Mapping
from functools import cached_property, partial
from random import Random
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Environment, Expert, Item, Recovery
from agentrl.envs.tasks import generated, options
from agentrl.envs.tasks.kg import datasets, world
from agentrl.envs.tasks.kg.environment import MAX_TURNS, KgEnvironment
from agentrl.envs.tasks.kg.expert import KgExpert
from agentrl.envs.tasks.kg.graph import Endpoint, Graph, LocalGraph
from agentrl.envs.tasks.kg.problem import Ontology, Problem, Rules
from agentrl.envs.tasks.kg.questions import Walker, draw_problem
from agentrl.envs.tasks.kg.tools import Workbench

MAX_NAME = 60  # characters of an entity a generated question may be about


class Options(options.Generated, frozen=True, forbid_unknown_fields=True):
    """`origin`: where questions come from; `data`: the folder of its dataset, else AGENTRL_DATA.

    `rules`: strict are the benchmark's; permissive ones accept every gold action of its items.
    `endpoint`: URL of a SPARQL endpoint that holds the graph, instead of this process.
    `query_timeout_s`: seconds of wall clock for one query.
    """

    origin: Literal["generated", "agentbench", "fb15k237"] = "generated"
    data: str = ""
    rules: Rules = "strict"
    endpoint: str = ""
    query_timeout_s: Annotated[float, Meta(gt=0)] = 30.0


class KgSource(generated.SplitSource):
    """A TaskSource; a large graph is read once in a process and shared by all episodes."""

    name = "kg"
    max_turns = MAX_TURNS

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._options = options.parse(self.name, Options, given)
        if self._options.endpoint and self._options.origin == "generated":
            raise ItemError("kg: option endpoint: generated items hold their own graphs")
        if self._options.origin == "agentbench":
            local = not self._options.endpoint
            load = partial(datasets.agentbench, given=self._options.data, graphs=local)
            self._splits = generated.LoadedSplits(self.name, datasets.SPLITS, load)
        else:
            draw = world.draw if self._options.origin == "generated" else self._draw
            draw_item = partial(draw, self._options.difficulty)
            self._splits = generated.Splits(self.name, self._options, draw_item)

    @property
    def recovery(self) -> Recovery:
        """Answers of an endpoint may change their order."""
        return "restart_only" if self._options.endpoint else "replayable"

    def make(self, item: Item) -> Environment:
        problem = options.read(item, Problem)
        graph, ontology = self._graph(problem)
        bench = Workbench(graph, ontology, problem.entities, self._options.rules)
        return KgEnvironment(problem, bench, self._options.style)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        problem = options.read(item, Problem)
        if not problem.actions:
            raise ItemError(f"item {item.item_id}: no actions to demonstrate")
        return KgExpert(problem, seed=seed, noise=noise)

    def _graph(self, problem: Problem) -> tuple[Graph, Ontology]:
        rules = self._options.rules
        if problem.shared and problem.shared != datasets.FB15K237.name:
            raise ItemError(f"kg: no graph {problem.shared[:40]}")
        if self._options.endpoint:
            shared = self._named.ontology if problem.shared else self._freebase.ontology(rules)
            return self._endpoint, shared
        if problem.shared:
            return self._named.graph, self._named.ontology
        graph = LocalGraph(
            problem.triples, problem.attributes, timeout_s=self._options.query_timeout_s
        )
        return graph, problem.ontology(rules)

    @cached_property
    def _endpoint(self) -> Endpoint:
        return Endpoint(self._options.endpoint, self._options.query_timeout_s)

    @cached_property
    def _freebase(self) -> datasets.Freebase:
        return datasets.Freebase.read(self._options.data)

    @property
    def _named(self) -> datasets.NamedGraph:
        return datasets.fb15k237(self._options.data)

    @cached_property
    def _walker(self) -> Walker:
        named = self._named
        starts = sorted(entity for entity, name in named.names.items() if len(name) <= MAX_NAME)
        return Walker(named.graph, named.ontology, starts, label, named.names.__getitem__)

    def _draw(self, difficulty: options.Difficulty, random: Random, number: int) -> generated.Drawn:
        walker = self._walker
        shapes = walker.shapes(difficulty)
        found = draw_problem(walker, random, shapes[number % len(shapes)], tries=1)
        if found is None:
            return None
        problem = msgspec.structs.replace(found, shared=datasets.FB15K237.name)
        return options.content(problem), "\n".join([found.short, *found.answers])


def label(relation: str) -> str:
    """Return the words of a Freebase relation: the last part of each of its halves."""
    halves = [half.split(".")[-1].replace("_", " ") for half in relation.split("..")]
    return " ".join(dict.fromkeys(halves))
