"""The task source: items and their environments."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from random import Random
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Environment, Expert, Item, Recovery
from agentrl.envs.tasks import generated, options
from agentrl.envs.tasks.alfworld.datasets import STANDARD
from agentrl.envs.tasks.alfworld.environment import AlfworldEnvironment
from agentrl.envs.tasks.alfworld.expert import AlfworldExpert
from agentrl.envs.tasks.alfworld.generate import draw
from agentrl.envs.tasks.alfworld.playable import is_published, open_game, play_game
from agentrl.envs.tasks.alfworld.problem import read_scene
from agentrl.envs.tasks.alfworld.published import games, walkthrough_search
from agentrl.envs.tasks.alfworld.published.walkthrough_expert import ReplayExpert
from agentrl.envs.tasks.datasets import MissingDataset

RELEASE = ("train", "valid_train", "valid_seen", "valid_unseen", "standard")
WHERE = "run `agentrl data show alfworld`"


class Options(options.Generated, frozen=True, forbid_unknown_fields=True):
    """`origin`: `agentbench` for the games of ALFWorld's release that AgentBench trains on.

    `data`: the data folder, empty for AGENTRL_DATA. `expert`: of the release: it plays the game's
    walkthrough, or looks for things where they are likely to be. `careless`: share of expert
    episodes that leave out the errand's treatment; walkthroughs never do.
    """

    origin: Literal["generated", "agentbench"] = "generated"
    data: str = ""
    expert: Literal["walkthrough", "search"] = "walkthrough"
    careless: Annotated[float, Meta(ge=0, le=1)] = 0.0


class AlfworldSource(generated.SplitSource):
    """A TaskSource of generated households, or of games of ALFWorld's release.

    Of the release, `train` is AgentBench's list as far as its games are there, and `standard` its
    test list, both in its order; the other splits are the release's own, sorted. An item's id is
    the path of its game.
    """

    name = "alfworld"
    max_turns = 20
    recovery: Recovery = "replayable"

    def __init__(self, raw_options: Mapping[str, Any]) -> None:
        self._options = options.parse(self.name, Options, raw_options)
        plays_walkthroughs = self._options.expert == "walkthrough"
        if self._options.careless and self._options.origin == "agentbench" and plays_walkthroughs:
            raise ItemError(
                f"{self.name}: option careless: experts that play walkthroughs never are",
                hint='set expert = "search"',
            )
        draw_item = partial(draw, self._options.difficulty)
        self._splits = (
            generated.Splits(self.name, self._options, draw_item)
            if self._options.origin == "generated"
            else generated.LoadedSplits(self.name, RELEASE, self._read)
        )

    def make(self, item: Item) -> Environment:
        style = self._options.style
        return AlfworldEnvironment(open_game(item, style), style)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        if is_published(item):
            commands = self._choose_commands(item, seed)
            return ReplayExpert(play_game(item), commands, seed=seed, noise=noise)
        careless = self._options.careless
        return AlfworldExpert(read_scene(item), seed=seed, noise=noise, careless=careless)

    def _choose_commands(self, item: Item, seed: int) -> Sequence[str]:
        """Return the commands of a published game's expert."""
        walkthrough: Sequence[str] = self._release.game(item.item_id).walkthrough
        if self._options.expert == "walkthrough":
            return walkthrough
        return walkthrough_search.search_game(
            play_game(item),
            walkthrough,
            self._habits,
            self.max_turns,
            is_careless=Random(f"careless {seed}").random() < self._options.careless,
        )

    @cached_property
    def _release(self) -> games.Release:
        return games.release(self._options.data)

    @cached_property
    def _habits(self) -> walkthrough_search.Habits:
        """Return where things lie in the training games."""
        train = (item.item_id for item in self.items("train"))
        return walkthrough_search.count_places(
            self._release.game(path).walkthrough for path in train
        )

    def _read(self, split: str) -> list[Item]:
        known = self._release.paths()
        local = set(known)
        if split == "train":
            paths = [path for path in games.listed_games(self._options.data) if path in local]
        elif split == "standard":
            paths = games.listed_games(self._options.data, STANDARD)
            if absent := [path for path in paths if path not in local]:
                raise MissingDataset(
                    f"{self.name}: {len(absent)} of the {len(paths)} games of split {split} are "
                    f"not here, such as {absent[0]}",
                    hint=WHERE,
                )
        else:
            paths = [path for path in known if path.split("/")[1] == split]
        if not paths:
            raise MissingDataset(f"{self.name}: no game of split {split} is there", hint=WHERE)
        return [self._item(path) for path in paths]

    def _item(self, path: str) -> Item:
        return Item(self.name, path, msgspec.to_builtins(self._release.game(path).packed))
