"""The figures of `agentrl envs check webshop`: goals, rewards, search, a full-size shop.

Peers: `lucene`, the path of Anserini's fat jar (needs java); `scale`, products of the made-up shop
that is built and measured; `catalogue`, a folder that keeps it.
"""

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import TypeVar

from agentrl.core.errors import ConfigError, ItemError
from agentrl.envs.contract import Expert, Item, Outcome, ToolCall
from agentrl.envs.tasks.check import Figure, Settings
from agentrl.envs.tasks.webshop import goals, lucene
from agentrl.envs.tasks.webshop.analysis import terms
from agentrl.envs.tasks.webshop.baselines import FirstResult, RandomShopper
from agentrl.envs.tasks.webshop.catalogue import MemoryCatalogue
from agentrl.envs.tasks.webshop.datasets import sample
from agentrl.envs.tasks.webshop.goals import Goal
from agentrl.envs.tasks.webshop.large_catalogue import FULL
from agentrl.envs.tasks.webshop.measure_catalogue import in_process
from agentrl.envs.tasks.webshop.reward import worth
from agentrl.envs.tasks.webshop.search import K1, B
from agentrl.envs.tasks.webshop.shop import FOUND, PAGE
from agentrl.envs.tasks.webshop.source import WebshopSource

SYNTHETIC, HUMAN = 6910, 13  # goals of the sample
AGREED = 0.965  # of the first ten, as was found of bm25s and Lucene
MAX_MIB, MAX_P50_MS = 3 * 1024, 20.0
SEARCHES = 500
S = TypeVar("S", bound=Sequence[object])


def figures(settings: Settings) -> Iterator[Figure]:
    """The figures of the task, each as soon as it is known."""
    for name, measure in _MEASURES.items():
        try:
            yield measure(settings)
        except (ItemError, ConfigError) as error:
            yield Figure(name, str(error), ok=None)


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Random clicks, and always the first result of the instruction."""
    source = WebshopSource({})
    random, constant = source.visit(item), source.visit(item)
    return {"random": RandomShopper(random, seed), "constant": FirstResult(constant)}


def _goals(settings: Settings) -> Figure:
    products = sample(settings.data).products
    found = len(goals.synthetic_goals(products)), len(goals.human_goals(products))
    value = f"{found[0]:,} synthetic, {found[1]} of people"
    wanted = f"{SYNTHETIC:,}, {HUMAN}"
    return Figure("goals of the sample", value, wanted, ok=found == (SYNTHETIC, HUMAN))


def _gold(settings: Settings) -> Figure:
    """Of each goal, the product it was made from with the options it names."""
    shop = sample(settings.data)
    wanted = _all(shop, settings)
    full = sum(_bought(shop, goal.asin, goal) == 1.0 for goal in wanted)
    value = f"reward 1 for {full:,} of {len(wanted):,}"
    return Figure("the wanted purchases", value, "all", ok=full == len(wanted))


def _other(settings: Settings) -> Figure:
    """Of each goal, a product drawn at random, bought without options."""
    shop, random = sample(settings.data), Random(settings.seed)
    wanted = _all(shop, settings)
    rewards = [worth(random.choice(shop.products), {}, goal).reward for goal in wanted]
    mean = sum(rewards) / len(rewards)
    return Figure("other purchases", f"mean reward {mean:.3f}", "< 0.1", ok=mean < 0.1)


def _play_goals(settings: Settings) -> Figure:
    """A demonstrator that is shown the product, through pages."""
    source = WebshopSource({"origin": "sample", "data": settings.data})
    items = _some(source.items("test")[: settings.limit or None], "item")
    won = sum(_play(source, item).reward == 1.0 for item in items)
    value = f"reward 1 in {won} of {len(items)} episodes"
    return Figure("shown the product, test goals", value, "all", ok=won == len(items))


def _beside_bm25s(settings: Settings) -> Figure:
    """Another program's BM25 of the same terms, its lengths unrounded."""
    name = "search beside bm25s, first ten"
    try:
        import bm25s
    except ImportError:
        return Figure(name, "needs bm25s", ok=None)
    shop = sample(settings.data)
    queries = _queries(shop, settings)
    index = bm25s.BM25(method="lucene", k1=K1, b=B)
    index.index([terms(each.text) for each in shop.products], show_progress=False)
    shares = []
    for query in queries:
        known = [term for term in terms(query) if term in index.vocab_dict]
        if known:
            ids, _ = index.retrieve([known], k=PAGE, show_progress=False)
            theirs = {shop.products[int(number)].asin for number in ids[0]}
            shares.append(len(theirs.intersection(shop.find(query, PAGE))) / PAGE)
    share = sum(shares) / len(_some(shares, "query of known words"))
    value = f"{share:.1%} of {len(shares)} queries' results"
    return Figure(name, value, f"≥ {AGREED:.1%}", ok=share >= AGREED)


def _beside_lucene(settings: Settings) -> Figure:
    """Lucene's own results and scores, to the last bit."""
    name = "search beside Lucene, first fifty"
    if "lucene" not in settings.peers:
        return Figure(name, "--peer lucene=anserini-…-fatjar.jar (needs java)", ok=None)
    shop = sample(settings.data)
    queries = _queries(shop, settings)
    documents = [(each.asin, each.text) for each in shop.products]
    try:
        theirs = lucene.search(Path(settings.peers["lucene"]), documents, queries)
    except (OSError, subprocess.SubprocessError) as error:
        return Figure(name, f"{error}", ok=None)
    same = sum(
        shop.find(query, FOUND) == [asin for asin, _ in found]
        for query, found in zip(queries, theirs, strict=True)
    )
    value = f"{same} of {len(queries)} queries equal, in order"
    return Figure(name, value, "all", ok=same == len(queries))


def _large(settings: Settings) -> Figure:
    name = "a shop of full size"
    wanted = f"{FULL:,}: < {MAX_MIB // 1024} GiB, p50 ≤ {MAX_P50_MS:.0f} ms"
    folder = Path(settings.peers.get("catalogue", ""))
    built = bool(settings.peers.get("catalogue")) and (folder / "shop.json").exists()
    if not built and "scale" not in settings.peers:
        return Figure(
            name, f"--peer scale={FULL} builds it: minutes, 3 GB of disk", wanted, ok=None
        )
    with tempfile.TemporaryDirectory() as temporary:
        place = folder if settings.peers.get("catalogue") else Path(temporary)
        if not built:
            in_process("build", place.absolute(), int(settings.peers["scale"]))
        found = in_process("serve", place.absolute(), settings.limit or SEARCHES)
    value = (
        f"{found['products']:,.0f}: {found['peak_mib']:,.0f} MiB, "
        f"p50 {found['search_p50_ms']:.1f} ms, p95 {found['search_p95_ms']:.1f} ms"
    )
    fits = found["peak_mib"] < MAX_MIB and found["search_p50_ms"] <= MAX_P50_MS
    return Figure(name, value, wanted, ok=fits if found["products"] >= FULL else fits and None)


_MEASURES: Mapping[str, Callable[[Settings], Figure]] = {
    "goals of the sample": _goals,
    "the wanted purchases": _gold,
    "other purchases": _other,
    "shown the product, test goals": _play_goals,
    "search beside bm25s, first ten": _beside_bm25s,
    "search beside Lucene, first fifty": _beside_lucene,
    "a shop of full size": _large,
}


def _all(shop: MemoryCatalogue, settings: Settings) -> list[Goal]:
    found = [*goals.human_goals(shop.products), *goals.synthetic_goals(shop.products)]
    return _some(found[: settings.limit or None], "goal")


def _bought(shop: MemoryCatalogue, asin: str, goal: Goal) -> float:
    chosen = {str(place): value for place, value in enumerate(goal.options)}
    return worth(shop.product(asin), chosen, goal).reward


def _play(source: WebshopSource, item: Item) -> Outcome:
    environment, expert = source.make(item), source.expert(item, seed=0)
    outcome = Outcome(environment.start().messages)
    for _ in range(source.max_turns):
        call = expert.act(outcome.messages)
        outcome = environment.call([call] if isinstance(call, ToolCall) else call)
        if outcome.done:
            break
    environment.close()
    return outcome


def _queries(shop: MemoryCatalogue, settings: Settings) -> Sequence[str]:
    """Templates and titles, in turn."""
    pairs = ((each.template.text, each.title) for each in shop.products if each.template)
    texts = (" ".join(text.lower().split()) for pair in pairs for text in pair)
    return _some(list(islice(texts, settings.limit or None)), "query")


def _some(found: S, of: str) -> S:
    """What was found; nothing is no figure. Raises ItemError."""
    if not found:
        raise ItemError(f"webshop: the sample has no {of}")
    return found
