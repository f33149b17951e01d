"""A household in the manner of ALFWorld: places, some of them closed, things to carry and treat.

    admissible() ─▶ {action text: command} ─▶ act(command) ─▶ view(), won

Only what is admissible can be done; the words for it are in `voice.py`.
"""

from collections.abc import Iterator, Mapping

from agentrl.envs.tasks.alfworld.problem import APPLIANCES, LAMP, MADE, AlfworldProblem, kind_of
from agentrl.envs.tasks.alfworld.stages import ErrandStages

Command = tuple[str, ...]  # a verb and the names it takes


class Household:
    """The world of one episode. `at`: the current place, `held`: the carried thing, or empty."""

    def __init__(self, scene: AlfworldProblem) -> None:
        self.scene = scene
        self.at = ""
        self.held = ""
        self.where = dict(scene.things)
        self.closed = {place.name for place in scene.places if place.opens}
        self.made: dict[str, str] = {}
        self.won = False
        self._opens = frozenset(self.closed)

    def admissible(self) -> Mapping[str, Command]:
        """Return the admissible actions in a fixed order."""
        return dict(self._commands())

    def act(self, command: Command) -> None:
        """Apply an admissible action."""
        match command:
            case ("go", place):
                self.at = place
            case ("open", place):
                self.closed.discard(place)
            case ("close", place):
                self.closed.add(place)
            case ("take", thing, _):
                del self.where[thing]
                self.held = thing
            case ("move", thing, place):
                self.where[thing] = place
                self.held = ""
            case ("clean" | "heat" | "cool" as verb, thing, _):
                self.made[thing] = MADE[verb]
            case ("use" | "look" | "inventory", *_):
                pass
        self.won = self.won or self._errand_done(command[0])

    def view(self) -> list[str] | None:
        """Return the names of the visible things, or None at a closed place."""
        return None if self.at in self.closed else self.contents(self.at)

    def contents(self, place: str) -> list[str]:
        """Return all things in a place, also those in a closed one."""
        return [thing for thing, where in self.where.items() if where == place]

    def fits(self, thing: str) -> bool:
        """Return whether a thing is of the kind that the errand asks for, treated or not."""
        return bool(thing) and kind_of(thing) == self.scene.errand.thing

    def ready(self, thing: str) -> bool:
        """Return whether a thing is of the right kind and treated as the errand asks."""
        return self.fits(thing) and self.made.get(thing) == MADE.get(self.scene.errand.kind)

    def delivered(self) -> list[str]:
        """Return the ready things that lie at their target."""
        target = self.scene.errand.target
        return [t for t, place in self.where.items() if kind_of(place) == target and self.ready(t)]

    def progress(self) -> float:
        """Return which share of the errand is done, 0 to 1: things taken, treated, delivered."""
        if self.won:
            return 1.0
        errand = self.scene.errand
        if errand.kind == "look":
            return 0.5 if self.fits(self.held) else 0.0
        stages, delivered = ErrandStages(errand.count, errand.kind in MADE), self.delivered()
        return stages.share(
            stages.of_thing(
                held=thing == self.held, ready=self.ready(thing), brought=thing in delivered
            )
            for thing in filter(self.fits, {*self.where, self.held})
        )

    def _commands(self) -> Iterator[tuple[str, Command]]:
        for place in self.scene.places:
            if place.name != self.at:
                yield f"go to {place.name}", ("go", place.name)
        if self.at in self._opens:
            verb = "open" if self.at in self.closed else "close"
            yield f"{verb} {self.at}", (verb, self.at)
        if self.at and self.at not in self.closed:
            yield from self._within_reach()
        if self.held:
            for verb, appliance in APPLIANCES.items():
                if self.at and kind_of(self.at) == appliance:
                    yield f"{verb} {self.held} with {self.at}", (verb, self.held, self.at)
        yield "look", ("look",)
        yield "inventory", ("inventory",)

    def _within_reach(self) -> Iterator[tuple[str, Command]]:
        for thing in self.contents(self.at):
            if kind_of(thing) == LAMP:
                yield f"use {thing}", ("use", thing)
            elif not self.held:
                yield f"take {thing} from {self.at}", ("take", thing, self.at)
        if self.held:
            yield f"move {self.held} to {self.at}", ("move", self.held, self.at)

    def _errand_done(self, verb: str) -> bool:
        if self.scene.errand.kind == "look":
            return verb == "use" and self.fits(self.held)
        return len(self.delivered()) >= self.scene.errand.count
