"""Worlds of generated problems: a template makes a small world of files and knows the answer.

A template draws from closed lists of words; the answer comes from Python, never from the command
that an expert runs, so that the two check each other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from shlex import quote

NAMES = ("ann", "ben", "eva", "ida", "joe", "kim", "lea", "max", "mia", "sam", "tom", "zoe")
WORDS = ("apple", "bread", "cloud", "dress", "eagle", "flame", "grape", "house", "river", "stone")
FOLDERS = ("docs", "work", "mail", "logs", "notes", "store")
EXTENSIONS = ("txt", "log", "csv", "cfg", "tmp", "md")
LEVELS = ("INFO", "WARN", "ERROR", "DEBUG")
SHELLS = ("/bin/bash", "/bin/sh", "/usr/sbin/nologin")
HOME = "/root"


@dataclass(frozen=True, slots=True)
class DrawnProblem:
    """A question with `answer`, or a change with a `check` script. `command` solves it."""

    question: str
    short: str
    files: Mapping[str, str]
    command: str
    answer: str = ""
    check: str = ""
    more: str = ""  # of the init script, after the files

    def init(self) -> str:
        """Return a script that makes the files."""
        folders = sorted({path.rpartition("/")[0] for path in self.files})
        lines = [f"mkdir -p {quote(folder)}" for folder in folders]
        lines += [f"printf %s {quote(text)} > {quote(path)}" for path, text in self.files.items()]
        return "\n".join([*lines, self.more]) + "\n"


Template = Callable[[Random], DrawnProblem]


def a_folder(random: Random) -> tuple[str, str]:
    name = random.choice(FOLDERS)
    return name, f"{HOME}/{name}"


def a_tree(random: Random, folder: str, extensions: tuple[str, ...]) -> dict[str, str]:
    """Draw 6–10 small files, some in a sub-folder."""
    files: dict[str, str] = {}
    for stem in random.sample(WORDS, random.randint(6, len(WORDS))):
        below = random.choice(("", "", "old/"))
        name = f"{stem}.{random.choice(extensions)}"
        files[f"{folder}/{below}{name}"] = "x" * random.randint(10, 400) + "\n"
    return files


def some_lines(random: Random, make: Callable[[], str], low: int = 8, high: int = 20) -> list[str]:
    return [make() for _ in range(random.randint(low, high))]


def text_of(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def quote_paths(paths: list[str]) -> str:
    return " ".join(map(quote, paths)) or "/"
