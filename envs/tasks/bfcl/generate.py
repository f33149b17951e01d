"""Seeded items: requests about a small folder, and about tickets, posts, messages or numbers.

Each template words a request and gives the calls that do it. The calls run while an item is drawn,
so that later requests speak of what earlier ones left, and none is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from agentrl.envs.tasks import options
from agentrl.envs.tasks.bfcl import templates, words
from agentrl.envs.tasks.bfcl.problem import Problem, Request
from agentrl.envs.tasks.bfcl.simulation import Simulation, is_error
from agentrl.envs.tasks.bfcl.templates import Draft, Template, file_name
from agentrl.envs.tasks.generated import Drawn
from agentrl.envs.tasks.options import Difficulty

_OTHERS = ("TicketAPI", "TwitterAPI", "MessageAPI", "MathAPI")
_TICKETS = 4  # of the queue to begin with
_REQUESTS: Mapping[Difficulty, int] = {"easy": 1, "medium": 2, "hard": 3}
_ROOT = "desk"


def draw(difficulty: Difficulty, random: Random, number: int) -> Drawn:
    """Content and key of an item; its second class is that of its number's turn."""
    other = _OTHERS[number % len(_OTHERS)]
    classes = ["GorillaFileSystem", other]
    config = {"GorillaFileSystem": _files(random, difficulty), other: _STATES[other](random)}
    draft = Draft(random, Simulation(classes, config))
    for step in range(_REQUESTS[difficulty]):
        about_files = step % 2 == (0 if difficulty != "easy" else number // len(_OTHERS) % 2)
        pool: Sequence[Template] = templates.ABOUT[other]
        if about_files:
            pool = templates.LONG if difficulty == "hard" else templates.FILES
        elif difficulty == "hard":
            pool = templates.CHAINED[other]
        if not _add_request(draft, random.choice(pool)):
            return None
    problem = Problem(draft.requests, classes, config)
    key = "\n".join([*(request.text for request in draft.requests), *draft.results])
    return options.content(problem), key


def _add_request(draft: Draft, template: Template) -> bool:
    """Add a request to a draft; return False if one of its calls fails."""
    text, short, calls = template(draft)
    results = [draft.simulation.run(call.name, call.arguments) for call in calls]
    draft.requests.append(Request(text, calls, short))
    draft.results += results
    return not any(map(is_error, results))


def _files(random: Random, difficulty: Difficulty) -> dict[str, Any]:
    def some_files() -> dict[str, Any]:
        names = {file_name(random): None for _ in range(random.randint(3, 5))}
        return {name: {"type": "file", "content": _lines(random)} for name in names}

    contents = some_files()
    for folder in random.sample(words.FOLDERS, 2):
        inner = some_files() if difficulty == "hard" else {}
        contents[folder] = {"type": "directory", "contents": inner}
    return {"root": {_ROOT: {"type": "directory", "contents": contents}}}


def _lines(random: Random) -> str:
    lines = [" ".join(random.sample(words.NOUNS, random.randint(2, 4))) for _ in range(3)]
    return "\n".join(lines)


def _tickets(random: Random) -> dict[str, Any]:
    numbers = random.sample(range(100, 1000), _TICKETS)
    queue = [
        {
            "id": number,
            "title": random.choice(words.NOUNS),
            "description": "",
            "status": "Open",
            "priority": random.randint(1, 5),
            "created_by": words.ME,
        }
        for number in numbers
    ]
    return {"ticket_queue": queue, "ticket_counter": 1000, "current_user": words.ME}


def _posts(random: Random) -> dict[str, Any]:
    number = random.randint(10, 99)
    content = " ".join(random.sample(words.NOUNS, 3))
    tweet = {"id": number, "username": words.ME, "content": content, "tags": [], "mentions": []}
    return {
        "username": words.ME,
        "password": "secret",
        "authenticated": True,
        "tweets": {str(number): tweet},
        "tweet_counter": number + 1,
    }


def _messages(_random: Random) -> dict[str, Any]:
    return {"current_user": "USR001"}


_STATES: Mapping[str, Callable[[Random], dict[str, Any]]] = {
    "TicketAPI": _tickets,
    "TwitterAPI": _posts,
    "MessageAPI": _messages,
    "MathAPI": lambda _random: {},
}
