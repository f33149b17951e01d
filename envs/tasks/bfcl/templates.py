"""Templates of generated requests: the words of one, and the calls that do it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from agentrl.envs.tasks.bfcl import words
from agentrl.envs.tasks.bfcl.problem import Call, Request
from agentrl.envs.tasks.bfcl.simulation import Simulation

Drawn = tuple[str, str, list[Call]]  # the request, its short form, the calls that do it


@dataclass
class Draft:
    """An item being drawn."""

    random: Random
    simulation: Simulation
    requests: list[Request] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def look(self, name: str, **arguments: Any) -> Any:
        """Return the result of a call that succeeds, read from JSON."""
        return json.loads(self.simulation.run(name, arguments))

    def list_names(self, folders: bool) -> list[str]:
        """Return the names in the current directory: of folders, or of files."""
        shown = self.look("ls")["current_directory_content"]
        return [name for name in shown if ("." not in name) == folders]

    def file(self) -> str:
        return self.random.choice(self.list_names(folders=False))

    def last_line(self, name: str) -> str:
        last: str = self.look("tail", file_name=name, lines=1)["last_lines"]
        return last

    def new_file(self) -> str:
        existing = self.list_names(folders=False)
        return self._new(existing, lambda: file_name(self.random))

    def new_folder(self) -> str:
        return self._new(self.list_names(folders=True), lambda: self.random.choice(words.FOLDERS))

    def text(self, length: int = 4) -> str:
        return " ".join(self.random.choices(words.NOUNS, k=length))

    def _new(self, existing: Sequence[str], draw: Callable[[], str]) -> str:
        while (name := draw()) in existing:
            pass
        return name


Template = Callable[[Draft], Drawn]


def file_name(random: Random) -> str:
    return f"{random.choice(words.STEMS)}.{random.choice(words.ENDINGS)}"


def _read(draft: Draft) -> Drawn:
    name = draft.file()
    return f"Show me what is in {name}.", f"read {name}", [Call("cat", {"file_name": name})]


def _last(draft: Draft) -> Drawn:
    name = draft.file()
    return f"What is the last line of {name}?", f"last line of {name}", [_tail(name)]


def _tail(name: str) -> Call:
    return Call("tail", {"file_name": name, "lines": 1})


def _words(draft: Draft) -> Drawn:
    name = draft.file()
    call = Call("wc", {"file_name": name, "mode": "w"})
    return f"How many words are in {name}?", f"words in {name}", [call]


def _search(draft: Draft) -> Drawn:
    name, word = draft.file(), draft.random.choice(words.NOUNS)
    call = Call("grep", {"file_name": name, "pattern": word})
    return f"Which lines of {name} speak of '{word}'?", f"lines of {name} with {word}", [call]


def _write(draft: Draft) -> Drawn:
    name, text = draft.new_file(), draft.text()
    message = f"Make a file {name} that says '{text}'."
    return message, f"write {text} to {name}", _written(name, text)


def _written(name: str, text: str) -> list[Call]:
    """Return the calls that write a new file; `echo` writes to a file that exists."""
    return [Call("touch", {"file_name": name}), Call("echo", {"content": text, "file_name": name})]


def _copy(draft: Draft) -> Drawn:
    name, new = draft.file(), draft.new_file()
    call = Call("cp", {"source": name, "destination": new})
    return f"Copy {name} to {new}.", f"copy {name} to {new}", [call]


def _remove(draft: Draft) -> Drawn:
    name = draft.file()
    return f"Delete {name}.", f"delete {name}", [Call("rm", {"file_name": name})]


def _move(draft: Draft) -> Drawn:
    name, folder = draft.file(), draft.new_folder()
    calls = [
        Call("mkdir", {"dir_name": folder}),
        Call("mv", {"source": name, "destination": folder}),
    ]
    return f"Make a folder {folder} and move {name} into it.", f"move {name} to new {folder}", calls


def _within(draft: Draft) -> Drawn:
    """One of the short ones, in a folder that is here, or else in the one above."""
    folder = draft.random.choice(draft.list_names(folders=True) or [".."])
    inside = Call("cd", {"folder": folder})
    here = draft.look("pwd")["current_working_directory"].rpartition("/")[2]
    draft.look("cd", folder=folder)
    text, short, calls = draft.random.choice(FILES)(draft)
    draft.look("cd", folder=here if folder == ".." else "..")
    where = "up one folder" if folder == ".." else f"to the folder {folder}"
    return f"Go {where}. {text}", f"in {folder} {short}", [inside, *calls]


def _counted(draft: Draft) -> Drawn:
    name, new = draft.file(), draft.new_file()
    count = draft.look("wc", file_name=name, mode="w")["count"]
    calls = [Call("wc", {"file_name": name, "mode": "w"}), *_written(new, str(count))]
    text = f"Count the words of {name} and write the number, and nothing else, to a new file {new}."
    return text, f"count words of {name} into {new}", calls


def _open_ticket(draft: Draft) -> Drawn:
    title, priority = draft.text(2), draft.random.randint(2, 5)
    call = Call("create_ticket", {"title": title, "priority": priority})
    text = f"Open a ticket '{title}' of priority {priority}."
    return text, f"ticket {title} priority {priority}", [call]


def _close_ticket(draft: Draft) -> Drawn:
    number = _number(draft)
    call = Call("close_ticket", {"ticket_id": number})
    return f"Close ticket {number}.", f"close {number}", [call]


def _edit_ticket(draft: Draft) -> Drawn:
    number = _number(draft)
    now = draft.look("get_ticket", ticket_id=number)["priority"]
    priority = draft.random.choice([each for each in range(1, 6) if each != now])
    call = Call("edit_ticket", {"ticket_id": number, "updates": {"priority": priority}})
    text = f"Set the priority of ticket {number} to {priority}."
    return text, f"priority {number} {priority}", [call]


def _number(draft: Draft) -> int:
    """Return the number of one of the tickets."""
    number: int = draft.random.choice(draft.simulation.instances["TicketAPI"].ticket_queue)["id"]
    return number


def _resolve_ticket(draft: Draft) -> Drawn:
    """By what a file says last."""
    name, number = draft.file(), _number(draft)
    last = draft.last_line(name)
    calls = [_tail(name), Call("resolve_ticket", {"ticket_id": number, "resolution": last})]
    text = f"Resolve ticket {number}; the resolution is the last line of {name}."
    return text, f"resolve {number} with last line of {name}", calls


def _post(draft: Draft) -> Drawn:
    text = draft.text()
    return f"Post '{text}'.", f"post {text}", [Call("post_tweet", {"content": text})]


def _follow(draft: Draft) -> Drawn:
    name = "_".join(draft.random.sample(words.NOUNS, 2))
    call = Call("follow_user", {"username_to_follow": name})
    return f"Follow {name}.", f"follow {name}", [call]


def _comment(draft: Draft) -> Drawn:
    tweet = min(draft.simulation.instances["TwitterAPI"].tweets)
    text = draft.text(3)
    call = Call("comment", {"tweet_id": tweet, "comment_content": text})
    return f"Comment '{text}' on post {tweet}.", f"comment {text} on {tweet}", [call]


def _post_line(draft: Draft) -> Drawn:
    name = draft.file()
    last = draft.last_line(name)
    calls = [_tail(name), Call("post_tweet", {"content": last})]
    return f"Post the last line of {name}, as it is.", f"post last line of {name}", calls


def _tell(draft: Draft) -> Drawn:
    name, text = draft.random.choice(words.USERS[1:]), draft.text()
    return f"Tell {name} '{text}'.", f"tell {name} {text}", _sent(draft, name, text)


def _tell_line(draft: Draft) -> Drawn:
    name, user = draft.file(), draft.random.choice(words.USERS[1:])
    last = draft.last_line(name)
    text = f"Send {user} the last line of {name}, as it is."
    return text, f"tell {user} last line of {name}", [_tail(name), *_sent(draft, user, last)]


def _sent(draft: Draft, user: str, text: str) -> list[Call]:
    found = draft.look("get_user_id", user=user)["user_id"]
    sent = Call("send_message", {"receiver_id": found, "message": text})
    return [Call("get_user_id", {"user": user}), sent]


def _mean(draft: Draft) -> Drawn:
    numbers = [draft.random.randint(1, 99) for _ in range(draft.random.randint(2, 4))]
    shown = " ".join(map(str, numbers))
    return f"What is the mean of {shown}?", f"mean {shown}", [Call("mean", {"numbers": numbers})]


def _sum(draft: Draft) -> Drawn:
    a, b = (draft.random.randint(10, 999) for _ in range(2))
    return f"What is {a} plus {b}?", f"add {a} {b}", [Call("add", {"a": a, "b": b})]


def _product(draft: Draft) -> Drawn:
    a, b = (draft.random.randint(2, 99) for _ in range(2))
    return f"What is {a} times {b}?", f"multiply {a} {b}", [Call("multiply", {"a": a, "b": b})]


def _written_product(draft: Draft) -> Drawn:
    a, b, name = draft.random.randint(2, 99), draft.random.randint(2, 99), draft.new_file()
    product = draft.look("multiply", a=a, b=b)["result"]
    calls = [Call("multiply", {"a": a, "b": b}), *_written(name, str(product))]
    text = f"Multiply {a} by {b} and write the product, and nothing else, to a new file {name}."
    return text, f"multiply {a} {b} into {name}", calls


FILES = (_read, _last, _words, _search, _write, _copy, _remove, _move)
LONG = (_within, _within, _counted)
ABOUT: Mapping[str, Sequence[Template]] = {
    "TicketAPI": (_open_ticket, _close_ticket, _edit_ticket),
    "TwitterAPI": (_post, _follow, _comment),
    "MessageAPI": (_tell,),
    "MathAPI": (_mean, _sum, _product),
}
CHAINED: Mapping[str, Sequence[Template]] = {
    "TicketAPI": (_resolve_ticket,),
    "TwitterAPI": (_post_line,),
    "MessageAPI": (_tell_line,),
    "MathAPI": (_written_product,),
}
