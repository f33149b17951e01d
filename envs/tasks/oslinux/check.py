"""The figures of `agentrl envs check os`: items that pass their own example, a constant answer."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from random import Random

from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError
from agentrl.envs.contract import Expert, Item, Message, ToolCall
from agentrl.envs.sandbox import sandbox
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.tasks.check import Figure, Settings
from agentrl.envs.tasks.oslinux.agentbench import SPLITS
from agentrl.envs.tasks.oslinux.environment import ANSWER
from agentrl.envs.tasks.oslinux.problem import Script
from agentrl.envs.tasks.oslinux.source import OsSource

AT_ONCE = 4  # containers
CONSTANT = "4"  # the answer that is right most often
SHARES = {"train": 0.995, "dev": 20 / 21}  # of the items with an example


@dataclass(frozen=True, slots=True)
class TriedItem:
    """The result of an item: whether its example passes (None without one), and the constant."""

    item: str
    passed: bool | None
    constant: bool
    failure: str = ""


def figures(settings: Settings) -> Iterator[Figure]:
    """Return, for each split of the benchmark, passed examples and the constant answer."""
    try:
        engine = Engine("check", settings.peers.get("docker"))
    except ConfigError as error:
        yield from (Figure(f"{split}: examples", str(error), ok=None) for split in SPLITS)
        return
    with closing(engine):
        for split in SPLITS:
            yield from _split(split, engine, settings)


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy of random digits and words, and one that always answers the same."""
    words = sorted(set(str(item.content["description"]).split()))
    return {
        "random": _Answers([*map(str, range(10)), *words], seed),
        "constant": _Answers([CONSTANT], seed),
    }


def _split(split: str, engine: Engine, settings: Settings) -> Iterator[Figure]:
    source = OsSource({"origin": "agentbench", "data": settings.data, "spares": 0})
    name = f"{split}: examples"
    try:
        items = source.items(split)[: settings.limit or None]
        with ExitStack() as stack:
            for pool in sandbox.make_sandboxes(source, engine, settings.peers.get("image", "")):
                stack.enter_context(closing(pool))
            with ThreadPoolExecutor(AT_ONCE) as threads:
                tried = list(threads.map(partial(attempt, source), items))
    except (ItemError, ConfigError) as error:
        yield Figure(name, str(error), ok=None)
        return
    yield _examples(name, tried, SHARES[split])
    right = sum(each.constant for each in tried)
    yield Figure(f'{split}: always answering "{CONSTANT}"', f"{right / len(tried):.1%}", ok=None)


def attempt(source: OsSource, item: Item) -> TriedItem:
    """Try the constant answer and the example's output, on one machine."""
    with closing(source.environment(item)) as environment:
        try:
            environment.start()
            constant = environment.passes(CONSTANT)
            example = item.content.get("example")
            if example is None:
                return TriedItem(item.item_id, None, constant)
            ran = environment.machine.run(Script(**example), (), source.script_timeout_s)
            return TriedItem(item.item_id, environment.passes(ran.text.strip()), constant)
        except EnvironmentFailure as error:
            return TriedItem(item.item_id, False, False, str(error))


def _examples(name: str, tried: Sequence[TriedItem], share: float) -> Figure:
    asked = [each for each in tried if each.passed is not None]
    failed = [f"{each.item} {each.failure}".strip() for each in asked if not each.passed]
    value = f"{len(asked) - len(failed)}/{len(asked)}"
    if failed:
        value = f"{value}; not {', '.join(failed)}"
    wanted = f"≥ {share:.1%} of those with an example"
    enough = len(asked) - len(failed) >= share * len(asked) - 1e-9
    return Figure(name, value, wanted, enough if asked else None)


class _Answers:
    """An Expert that answers at once."""

    def __init__(self, choices: Sequence[str], seed: int) -> None:
        self._choices = choices
        self._random = Random(seed)

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        return ToolCall(ANSWER, {"answer": self._random.choice(self._choices)})
