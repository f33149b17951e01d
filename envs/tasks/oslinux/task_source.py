"""The task source: items and their environments."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentrl.core.errors import ConfigError, ItemError
from agentrl.envs.contract import Expert, Item
from agentrl.envs.sandbox.program import OS
from agentrl.envs.sandbox.sandbox import Sandboxes, Spec
from agentrl.envs.tasks import generated, options
from agentrl.envs.tasks.oslinux import agentbench
from agentrl.envs.tasks.oslinux.environment import OsEnvironment
from agentrl.envs.tasks.oslinux.expert import OsExpert, commands_of, known_answer
from agentrl.envs.tasks.oslinux.generate import draw
from agentrl.envs.tasks.oslinux.machine import Machine, program
from agentrl.envs.tasks.oslinux.problem import read

Seconds = Annotated[float, Meta(gt=0)]


class Options(options.Generated, frozen=True, forbid_unknown_fields=True):
    """`origin`: generated items or a dataset's; `data`: its folder, empty for AGENTRL_DATA.

    `images`: the image of containers for each image that items name, else envs.docker_image.
    `spares`: containers kept warm for each image. `command_timeout_s`: seconds of wall clock for
    one of the agent's commands, `script_timeout_s` for one of the item's scripts.
    """

    origin: Literal["generated", "agentbench"] = "generated"
    data: str = ""
    images: Mapping[str, str] = msgspec.field(default_factory=dict)
    spares: Annotated[int, Meta(ge=0)] = 1
    command_timeout_s: Seconds = 30.0
    script_timeout_s: Seconds = 120.0


class OsSource(generated.SplitSource):
    """A TaskSource whose every episode has a container of its own."""

    name = "os"
    max_turns = 8

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._options = options.parse(self.name, Options, given)
        load = partial(agentbench.load, given=self._options.data)
        draw_item = partial(draw, self._options.difficulty)
        self._splits = (
            generated.Splits(self.name, self._options, draw_item)
            if self._options.origin == "generated"
            else generated.LoadedSplits(self.name, agentbench.SPLITS, load)
        )
        self._pools: Mapping[str, Sandboxes] = {}

    def make(self, item: Item) -> OsEnvironment:
        """Make an episode's environment. Raises ConfigError without containers."""
        problem = read(item)
        if not self._pools:
            raise ConfigError(
                "os runs in containers, which need an env server",
                hint="set envs.url to an env server",
            )
        pool = self._pools.get(problem.image) or self._pools[""]
        return OsEnvironment(
            problem,
            self._options.style,
            partial(Machine, pool),
            command_s=self._options.command_timeout_s,
            script_s=self._options.script_timeout_s,
        )

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        problem = read(item)
        if not (commands_of(problem) or known_answer(problem)):
            raise ItemError(f"item {item.item_id}: no commands, example or answer to demonstrate")
        return OsExpert(problem, seed=seed, noise=noise)

    def specs(self, image: str) -> Sequence[Spec]:
        """Return one Spec for each image; a container is used once, because its agent is root."""
        spec = partial(Spec, program=program(), limits=OS, reuse=1, spares=self._options.spares)
        return [
            spec(image=image),
            *(spec(image=named, name=name) for name, named in self._options.images.items()),
        ]

    def contain(self, pools: Mapping[str, Sandboxes]) -> None:
        self._pools = pools
