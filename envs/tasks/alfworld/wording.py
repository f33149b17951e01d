"""The wording of a household: ALFWorld's own, or a short form with the same facts."""

from collections.abc import Sequence

from agentrl.envs.tasks.alfworld.household import Command, Household
from agentrl.envs.tasks.alfworld.problem import AlfworldProblem
from agentrl.envs.tasks.options import Style

NOTHING_HAPPENED = "Nothing happened."

_TEXTS = {
    "go": "You arrive at {0}. {sight}",
    "open": "You open the {0}. The {0} is open. In it, you see {things}.",
    "close": "You close the {0}.",
    "take": "You pick up the {0} from the {1}.",
    "move": "You move the {0} to the {1}.",
    "clean": "You clean the {0} using the {1}.",
    "heat": "You heat the {0} using the {1}.",
    "cool": "You cool the {0} using the {1}.",
    "use": "You turn on the {0}.",
    "look": "{standing} {sight}",
    "inventory": "You are carrying: {held}.",
}
_ROOM = "You are in the middle of a room. Looking quickly around you, you see"


def welcome(scene: AlfworldProblem, style: Style) -> str:
    """Describe the errand and the room at the start."""
    places = [place.name for place in scene.places]
    if style == "compact":
        return f"{scene.errand.text}\n{' '.join(places)}"
    return f"{_ROOM} {_listed(places)}.\nYour task is to: {scene.errand.text}."


def notice(command: Command, household: Household, style: Style) -> str:
    """Describe what the agent sees after `command`."""
    verb, *names = command
    view = household.view()
    if style == "compact":
        return _compact(verb, view, household.held)
    return (
        _TEXTS[verb]
        .format(
            *names,
            things=_listed(view or ()),
            sight=_sight(household.at, view),
            standing=f"You are facing the {household.at}." if household.at else "",
            held=_listed([household.held] if household.held else ()),
        )
        .strip()
    )


def _compact(verb: str, view: Sequence[str] | None, held: str) -> str:
    if verb == "inventory":
        return held or "nothing"
    if verb in ("go", "open", "look"):
        return "closed" if view is None else " ".join(view) or "nothing"
    return "ok"


def _sight(place: str, view: Sequence[str] | None) -> str:
    if not place:
        return f"{_ROOM} nothing."
    return (
        f"The {place} is closed." if view is None else f"On the {place}, you see {_listed(view)}."
    )


def _listed(names: Sequence[str]) -> str:
    """Join names as ALFWorld does: `a mug 1, an egg 1, and a cup 2`."""
    if not names:
        return "nothing"
    words = [f"{'an' if name[0] in 'aeiou' else 'a'} {name}" for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, and {words[-1]}"
