"""The figures of `agentrl envs check bfcl`: the number of supported published items."""

from collections import Counter
from collections.abc import Iterator, Mapping

from agentrl.envs.contract import Expert, Item
from agentrl.envs.tasks.bfcl import datasets, problem
from agentrl.envs.tasks.bfcl.baselines import LooksAndLeaves, RandomCalls
from agentrl.envs.tasks.bfcl.world import World
from agentrl.envs.tasks.check import Figure, Settings


def figures(settings: Settings) -> Iterator[Figure]:
    """Of each published split: items here, those left out by their reason, refused truths."""
    for split in datasets.SPLITS:
        found = datasets.imported(split, settings.data)
        whole = len(found.items) + len(found.refused)
        reasons = Counter(found.refused.values()).most_common()
        why = "".join(f"; {reason}: {count}" for reason, count in reasons)
        yield Figure(f"v3 {split} items", f"{len(found.items):,} of {whole:,}{why}")
        errs = [item.item_id for item in found.items if refuses(item)]
        told = f"{len(errs):,} of {len(found.items):,}"
        yield Figure(f"v3 {split} with a refused call in the truth", told)


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Calls at random, and always the same one."""
    return {"random": RandomCalls(problem.of(item), seed), "constant": LooksAndLeaves()}


def refuses(item: Item) -> bool:
    """Whether one of the truth's own calls is answered with an error here."""
    found = problem.of(item)
    world = World(found.classes, found.config)
    calls = [call for request in found.requests for call in request.truth]
    return any("error" in world.run(call.name, call.arguments) for call in calls)
