"""A demonstrator: searches the places in their listed order, treats what it finds, brings it.

It keeps a household of its own in step with its actions, so it always knows where it stands. With
noise it errs as a learner does: a step skipped, a wrong place or thing, a thing put down early. A
careless one leaves out the errand's treatment, and then looks around as if the errand were done.
"""

from collections.abc import Sequence
from random import Random

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.alfworld.environment import ACT
from agentrl.envs.tasks.alfworld.household import Household
from agentrl.envs.tasks.alfworld.problem import APPLIANCES, LAMP, AlfworldProblem, kind_of


class AlfworldExpert:
    """An Expert; `noise`: probability of an error a turn. `careless`: probability that it is
    careless for the whole episode.
    """

    def __init__(
        self, scene: AlfworldProblem, *, seed: int, noise: float, careless: float = 0.0
    ) -> None:
        self._household = Household(scene)
        self._random = Random(seed)
        self._noise = noise
        self._is_careless = careless > 0 and self._random.random() < careless
        self._seen: set[str] = set()

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002 the household tells it all
        action = self._mistake() if self._random.random() < self._noise else self._plan()
        self._household.act(self._household.admissible()[action])
        if self._household.at not in self._household.closed:
            self._seen.add(self._household.at)
        return ToolCall(ACT, {"action": action})

    def _mistake(self) -> str:
        """Forget the errand's treatment, or take a random admissible action, equally likely."""
        planned, skipped = self._plan(), self._plan(treat=False)
        if planned != skipped and self._random.random() < 0.5:
            return skipped
        idle = (planned, "look", "inventory")
        others = [action for action in self._household.admissible() if action not in idle]
        return self._random.choice(others)

    def _plan(self, *, treat: bool = True) -> str:
        household, errand = self._household, self._household.scene.errand
        held = household.held
        if self._is_careless and self._is_brought():
            return "look"
        if held and not household.fits(held):
            return self._reach(household.at, f"move {held} to {household.at}")
        if not held:
            return self._fetch()
        if errand.kind == "look":
            return self._under_the_lamp()
        if treat and not self._is_careless and not household.ready(held):
            appliance = self._place_of_kind(APPLIANCES[errand.kind])
            return self._go(appliance, f"{errand.kind} {held} with {appliance}")
        target = self._place_of_kind(errand.target)
        return self._reach(target, f"move {held} to {target}")

    def _is_brought(self) -> bool:
        """Return whether a thing of the right kind, treated or not, lies at the target."""
        household = self._household
        target = household.scene.errand.target
        there = (thing for thing, place in household.where.items() if kind_of(place) == target)
        return any(household.fits(thing) for thing in there)

    def _fetch(self) -> str:
        """Take a thing that was seen, or search on."""
        household = self._household
        done = household.delivered()
        for thing, place in household.where.items():
            if place in self._seen and household.fits(thing) and thing not in done:
                return self._reach(place, f"take {thing} from {place}")
        return self._search()

    def _search(self) -> str:
        """Go to the next place not yet looked into, the errand's target last."""
        target = self._household.scene.errand.target
        unseen = [p.name for p in self._household.scene.places if p.name not in self._seen]
        place = min(unseen, key=lambda name: (name != self._household.at, kind_of(name) == target))
        return self._go(place, f"open {place}")

    def _under_the_lamp(self) -> str:
        for thing, place in self._household.where.items():
            if kind_of(thing) == LAMP and place in self._seen:
                return self._reach(place, f"use {thing}")
        return self._search()

    def _reach(self, place: str, action: str) -> str:
        """Return the action that must precede `action` within a place, or `action` itself."""
        return self._go(place, f"open {place}" if place in self._household.closed else action)

    def _go(self, place: str, action: str) -> str:
        return action if self._household.at == place else f"go to {place}"

    def _place_of_kind(self, kind: str) -> str:
        places = self._household.scene.places
        return next(place.name for place in places if kind_of(place.name) == kind)
